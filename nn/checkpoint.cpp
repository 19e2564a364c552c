#include "lockstep/nn/checkpoint.h"

#include <cstdio>
#include <utility>

#include "lockstep/core/autograd.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/checksum.h"
#include "lockstep/nn/checkpoint/directory.h"
#include "lockstep/nn/checkpoint/snapshot.h"
#include "lockstep/nn/checkpoint/state.h"
#include "lockstep/nn/checkpoint/together.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using Warn = std::function<void(const std::string&)>;

constexpr std::string_view kSave = "save_checkpoint";

// Steps of at most 18 digits keep names, and sums of steps, in bounds.
constexpr int64_t kMostSteps = int64_t{999'999'999'999'999'999};

void print_warning(const std::string& text) {
  std::fprintf(stderr, "lockstep: warning: %s\n", text.c_str());
}

Warn warn_or_print(const Warn& warn) { return warn ? warn : Warn(print_warning); }

// What ranks must agree on before one of them saves for all.
uint64_t layout_checksum(const Contents& contents) {
  std::string text;
  for (const auto& [name, tensor] : contents.tensors) {
    text += str_cat(name, " ", lockstep::name(tensor.dtype()), to_string(tensor.shape()), "\n");
  }
  for (const NamedValue& value : contents.values) {
    text += str_cat(value.name, " ", type_name(value.value), "\n");
  }
  return xxh3(text);
}

// Collective.
void check_agreement(comm::Communicator* group, int64_t step, const Contents& contents,
                     size_t generator_words) {
  constexpr size_t kWords = 3;
  const std::vector<uint64_t> all = gather_words(
      group, {static_cast<uint64_t>(step), layout_checksum(contents), generator_words});
  for (size_t rank = 1; rank * kWords < all.size(); ++rank) {
    const uint64_t* theirs = all.data() + rank * kWords;
    if (theirs[0] != all[0]) {
      throw Error(ErrorCode::kMismatch, kSave,
                  str_cat("rank ", rank, " saves step ", theirs[0], ", rank 0 step ", all[0]));
    }
    if (theirs[1] != all[1] || theirs[2] != all[2]) {
      throw Error(ErrorCode::kMismatch, kSave,
                  str_cat("rank ", rank,
                          " saves tensors and values of other names, shapes or types than rank 0: "
                          "every rank adds the same things to its TrainingState"));
    }
  }
}

void write_contents(const fs::path& folder, int64_t step, const std::string& run, Contents contents,
                    const CheckpointOptions& options) {
  NoGrad no_grad;
  std::vector<TensorBytes> tensors;
  for (auto& [name, tensor] : contents.tensors) {
    tensor = tensor.contiguous();  // a view gives its own elements, row-major
    tensors.push_back({name, tensor.dtype(), tensor.shape(), tensor.view().data});
  }
  SaveRequest request;
  request.step = step;
  request.run = run;
  request.world_size = size_of_group(options.group);
  request.keep = options.keep;
  request.tensors = tensors;
  request.values = contents.values;
  Disk real_disk;
  write_checkpoint(options.disk != nullptr ? *options.disk : real_disk, folder, request,
                   warn_or_print(options.warn));
}

// Collective. `read` runs on rank 0; nullopt if it found nothing.
std::optional<LoadReport> load(std::string_view op, const std::function<Snapshot()>& read,
                               TrainingState& state, const LoadOptions& options) {
  const int rank = rank_of(options.group);
  Snapshot snapshot;
  together(options.group, op, [&] {
    if (rank == 0) snapshot = read();
  });
  share_snapshot(options.group, snapshot);
  if (rank == 0) {
    for (const std::string& line : snapshot.skipped) {
      warn_or_print(options.warn)(str_cat("passed over a damaged checkpoint: ", line));
    }
  }
  if (snapshot.path.empty()) return std::nullopt;
  LoadPlan plan;
  together(options.group, op, [&] {
    plan = StateAccess::plan(state, snapshot.contents, rank);
    plan.report.path = snapshot.path;
    plan.report.step = snapshot.step;
    plan.report.skipped = snapshot.skipped;
    plan.check(options.strict);
  });
  together(options.group, op, [&] { plan.apply(); });
  StateAccess::set_run(state, snapshot.run);
  return plan.report;
}

}  // namespace

void save_checkpoint(const fs::path& folder, int64_t step, const TrainingState& state,
                     const CheckpointOptions& options) {
  comm::Communicator* group = options.group;
  Contents contents;
  GeneratorWords words;
  together(group, kSave, [&] {
    check(step >= 0 && step <= kMostSteps, kSave,
          [&] { return str_cat("want a step of 0 and more, got ", step); });
    check(options.keep >= 0, kSave,
          [&] { return str_cat("want keep of 0 (all) and more, got ", options.keep); });
    check(!folder.empty(), kSave, "want a folder, got an empty path");
    contents = StateAccess::collect(state);
    words = StateAccess::generators(state);
  });
  check_agreement(group, step, contents, words.size());
  words = gather_words(group, words);
  together(group, kSave, [&] {
    if (rank_of(group) != 0) return;
    StateAccess::add_generators(state, words, contents);
    write_contents(folder, step, StateAccess::run(state), std::move(contents), options);
  });
}

std::optional<LoadReport> load_latest(const fs::path& folder, TrainingState& state,
                                      const LoadOptions& options) {
  return load(
      "load_latest", [&] { return read_latest(folder); }, state, options);
}

LoadReport load_checkpoint(const fs::path& path, TrainingState& state, const LoadOptions& options) {
  return *load(
      "load_checkpoint", [&] { return read_snapshot(path); }, state, options);
}

NamedTensors read_state_dict(const fs::path& path, std::string_view part) {
  Snapshot snapshot = read_snapshot(path);
  const std::string prefix = str_cat(part, "/");
  NamedTensors tensors;
  for (auto& [name, tensor] : snapshot.contents.tensors) {
    if (name.starts_with(prefix)) tensors.emplace_back(name.substr(prefix.size()), tensor);
  }
  check(!tensors.empty(), "read_state_dict",
        [&] { return str_cat(path.string(), " has no tensors under '", part, "'"); });
  return tensors;
}

LoadReport load_state_dict(Module& module, const NamedTensors& tensors, bool strict) {
  LoadPlan plan;
  plan_module(module, "", tensors, plan);
  plan.check(strict);
  plan.apply();
  return plan.report;
}

void remove_checkpoints(const fs::path& folder) {
  Disk disk;
  remove_all_checkpoints(disk, folder);
}

}  // namespace lockstep::nn
