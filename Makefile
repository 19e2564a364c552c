# Lockstep's commands. Each installs what is missing, builds what it needs and says what it does;
# `make help` lists them, and the variables.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.ONESHELL:
.DEFAULT_GOAL := build

PRESET ?= release
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
RANKS ?= 2
PEER_RANKS ?= 2 4
EPOCHS ?= 3
OUT ?= out/train
TRANSPORTS ?= thread shm tcp
BENCH_ARGS ?= -n 2 -b 8 -e 64M -f 4
TRAIN_ARGS ?=
BENCH_TRAIN_ARGS ?=
CTEST_ARGS ?=
GPU_TEST_ARGS ?=
GPU_BENCH_ARGS ?=
CMAKE_ARGS ?=
FUZZ_RUNS ?= 200000
KILLS ?= 500
MODELS ?= 2000
WAITS ?=
FUZZERS ?= $(patsubst tests/fuzz/%.cpp,%,$(wildcard tests/fuzz/fuzz_*.cpp))

BIN := build/$(PRESET)/bin
SOURCES = $(shell find kernels core comm nn bench examples tools tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
LIBRARY_SOURCES = $(shell find kernels core comm nn tools -name '*.cpp')

# $(call set_up,groups of install.sh), $(call build,preset,targets), $(call test,preset,targets)
set_up = third_party/install.sh $(1)
define build
echo "configure: preset $(1)"
cmake --preset $(1) $(CMAKE_ARGS) >/dev/null
echo "build: build/$(1)"
cmake --build --preset $(1) -j $(JOBS) $(if $(2),--target $(2))
endef
define test
$(call build,$(1),$(2))
echo "test: preset $(1)"
ctest --preset $(1) -j $(JOBS) $(if $(CTEST_ARGS),--no-tests=ignore $(CTEST_ARGS))
endef

.PHONY: build
build: ## installs what is missing and builds everything
	@$(call set_up,build)
	@$(call build,$(PRESET))

.PHONY: train
train: ## trains the Fashion-MNIST example (RANKS, EPOCHS, OUT, TRAIN_ARGS)
	@$(call set_up,build data)
	@$(call build,$(PRESET),lockstep_cli train_fashion_mnist)
	@echo "train: ranks: $(RANKS), epochs: $(EPOCHS); results go to $(OUT)"
	@$(BIN)/lockstep run -n $(RANKS) $(BIN)/train_fashion_mnist --epochs $(EPOCHS) --out $(OUT) \
	  $(TRAIN_ARGS)

.PHONY: bench
bench: ## measures all-reduce and training (TRANSPORTS, BENCH_ARGS, BENCH_TRAIN_ARGS)
	@$(call set_up,build)
	@$(call build,$(PRESET),bench_allreduce bench_train)
	@for transport in $(TRANSPORTS); do
	  echo "bench: all-reduce over $$transport"
	  $(BIN)/bench_allreduce --transport $$transport $(BENCH_ARGS)
	done
	@echo "bench: training"
	@$(BIN)/bench_train $(BENCH_TRAIN_ARGS)

.PHONY: test
test: ## runs every test (CTEST_ARGS)
	@$(call set_up,build data simt)
	@$(call test,$(PRESET))
	@# Without nvcc and NCCL's header, what is emulated has a build of its own.
	@if ! grep -q '^LOCKSTEP_SIMT_HERE:INTERNAL=ON' build/$(PRESET)/CMakeCache.txt; then
	  $(call test,simt,simt_tests)
	fi

.PHONY: check
check: check-format check-lint check-asan check-tsan check-fuzz check-kills check-models check-barriers ## format, lint, sanitizers, fuzzers, kills, random models, barriers

.PHONY: check-format
check-format: ## the first part of check: is every file as clang-format 14 writes it?
	@$(call set_up,build check)
	@echo "check: format"
	@clang-format-14 --dry-run -Werror $(SOURCES)

# clang reads GCC's omp.h, less one attribute that it does not know, and reads without OpenMP, in which
# it refuses lambdas that capture structured bindings.
.PHONY: check-lint
check-lint: ## the second part: clang-tidy 16 over the libraries and tools
	@$(call set_up,build check)
	@$(call build,$(PRESET),lockstep_kernels)
	@echo "check: lint"
	@mkdir -p build/lint
	@sed 's/__malloc__ (omp_free)/__malloc__/' "$$(g++ -print-file-name=include/omp.h)" \
	  >build/lint/omp.h
	@printf '%s\n' $(LIBRARY_SOURCES) | xargs -P $(JOBS) -n 1 clang-tidy-16 -p build/$(PRESET) \
	  --quiet --warnings-as-errors='*' --extra-arg=-isystem$(CURDIR)/build/lint \
	  --extra-arg=-fno-openmp 2> >(grep -v ' warnings generated' >&2)

.PHONY: check-asan
check-asan: ## the third part: tests with AddressSanitizer and UndefinedBehaviorSanitizer
	@$(call set_up,build data simt)
	@$(call test,asan)

.PHONY: check-tsan
check-tsan: ## the fourth part: tests with ThreadSanitizer
	@$(call set_up,build data simt)
	@$(call test,tsan)

# What is found lies in build/fuzz; tests/fuzz/corpus keeps small inputs alone, and is not written to.
.PHONY: check-fuzz
check-fuzz: ## the fifth part: each fuzzer of tests/fuzz/ for a while (FUZZ_RUNS, FUZZERS)
	@$(call set_up,build check)
	@$(call build,fuzz,$(FUZZERS))
	@for fuzzer in $(FUZZERS); do
	  echo "check: $$fuzzer, $(FUZZ_RUNS) inputs"
	  mkdir -p build/fuzz/corpus/$$fuzzer
	  build/fuzz/bin/$$fuzzer -runs=$(FUZZ_RUNS) -artifact_prefix=build/fuzz/$$fuzzer- -timeout=20 \
	    -print_final_stats=1 build/fuzz/corpus/$$fuzzer tests/fuzz/corpus/$${fuzzer#fuzz_} 2>&1 |
	    tee build/fuzz/$$fuzzer.log | grep -E '^(==|.*(ERROR|SUMMARY|number_of_executed_units))'
	done

.PHONY: check-kills
check-kills: ## the sixth part: ranks killed at random instants of any collective (KILLS)
	@$(call set_up,build)
	@$(call build,$(PRESET),comm_kill_test)
	@echo "check: $(KILLS) kills"
	@LOCKSTEP_KILLS=$(KILLS) build/$(PRESET)/tests/comm_kill_test

.PHONY: check-models
check-models: ## the seventh part: random models on several ranks against one process (MODELS)
	@$(call set_up,build)
	@$(call build,$(PRESET),nn_data_parallel_property_test)
	@echo "check: $(MODELS) random models"
	@LOCKSTEP_TEST_MODELS=$(MODELS) build/$(PRESET)/tests/nn_data_parallel_property_test

.PHONY: check-barriers
check-barriers: ## the eighth part: proves that what meets in a CUDA block is free of races (needs nvcc)
	@$(call set_up,build check)
	@cmake --preset $(PRESET) $(CMAKE_ARGS) >/dev/null
	@echo "check: barriers"
	@python3 tests/cuda/prove_barriers.py build/$(PRESET)

# By itself, for it takes hours. What it builds of a copy of the sources lies in build/simt/without.
.PHONY: check-waits
check-waits: ## takes each barrier and each wait for a device or rank away: does a test miss it? (WAITS)
	@$(call set_up,build check simt)
	@$(call build,simt,simt_tests)
	@echo "check: waits"
	@python3 tests/simt/remove_waits.py build/simt both $(WAITS)

.PHONY: gpu-test
gpu-test: ## CUDA's tests on this machine's devices, without one it fails, then all others (GPU_TEST_ARGS)
	@$(call set_up,build data simt)
	@$(call build,gpu,gpu_test gpu_timeline_test)
	@build/gpu/bin/gpu_test --gtest_brief=1 $(GPU_TEST_ARGS)
	@build/gpu/bin/gpu_timeline_test --gtest_brief=1
	@$(call build,gpu,all)
	@ctest --test-dir build/gpu --output-on-failure -LE gpu -j $(JOBS) $(CTEST_ARGS)

.PHONY: gpu-bench
gpu-bench: ## measures kernels, all_reduce and GPT-2 on a CUDA device (GPU_BENCH_ARGS, BENCH_TRAIN_ARGS)
	@$(call set_up,build)
	@$(call build,gpu,bench_kernels bench_allreduce bench_train)
	@build/gpu/bin/bench_kernels --device cuda:0 $(GPU_BENCH_ARGS)
	@build/gpu/bin/bench_allreduce --device cuda:0 --transport cuda
	@build/gpu/bin/bench_train --device cuda:0 --dtype bf16 --models gpt2 --peers $(BENCH_TRAIN_ARGS)

.PHONY: gpu-bundle
gpu-bundle: CMAKE_ARGS += -DCMAKE_CUDA_ARCHITECTURES=90-real
gpu-bundle: ## one folder of at most 64 MiB, build/gpu/bundle, to run gpu-test and gpu-bench elsewhere
	@$(call set_up,build)
	@$(call build,gpu)
	@tests/gpu/bundle.sh build/gpu

# The picture in docs/. LOCKSTEP_TIMELINE makes such a file of any job; Perfetto shows all of it.
.PHONY: timeline
timeline: ## records a step of the MLP on RANKS ranks, and draws it: build/PRESET/timeline.json and .svg
	@$(call set_up,build)
	@$(call build,$(PRESET),bench_train)
	@$(BIN)/bench_train --models mlp --ranks $(RANKS) --repetitions 1 --turns 1 --no-costs \
	  --timeline build/$(PRESET)/timeline.json
	@python3 bench/timeline_svg.py build/$(PRESET)/timeline.json build/$(PRESET)/timeline.svg

.PHONY: peers
peers: ## measures Gloo, Open MPI and PyTorch beside Lockstep, installing them where possible
	@$(call set_up,build)
	@$(call build,$(PRESET),bench_allreduce bench_train bench_checkpoint bench_kernels)
	@for ranks in $(PEER_RANKS); do bench/peers/run.sh build/$(PRESET) $$ranks; done
	@python3 bench/peers/chart.py build/$(PRESET)/peers build/$(PRESET)/peers/allreduce.svg $(PEER_RANKS)
	@echo "peers: tables and a chart are in build/$(PRESET)/peers"
	@$(BIN)/bench_train --ranks $(RANKS) --peers $(BENCH_TRAIN_ARGS)
	@bench/peers/checkpoint.sh build/$(PRESET)
	@$$(ls build/$(PRESET)/peers/venv/bin/python3 2>/dev/null || echo python3) \
	  bench/peers/small_ops.py build/$(PRESET)

.PHONY: clean
clean: ## removes build/; what training wrote stays
	rm -rf build

.PHONY: help
help: ## prints this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16
	@echo
	@echo "variables: PRESET JOBS RANKS EPOCHS OUT TRANSPORTS TRAIN_ARGS BENCH_ARGS"
	@echo "           BENCH_TRAIN_ARGS CTEST_ARGS CMAKE_ARGS FUZZ_RUNS KILLS MODELS WAITS"
	@echo "           GPU_TEST_ARGS GPU_BENCH_ARGS, as in: make train EPOCHS=1 RANKS=1"
