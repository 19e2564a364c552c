#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>

#include "lockstep/kernels/device.h"
#include "lockstep/kernels/stream.h"

// What this machine can do at best, measured in the same run with the threads that the library uses
// (OMP_NUM_THREADS): what bench_kernels holds its kernels against.
namespace lockstep::bench {

// Where the measured kernels run; the CPU at first. To be set before anything is measured.
Device device();
void set_device(Device device);
// More products and convolutions, for the CUDA device that was set: in bf16, and of sizes that
// would take a CPU too long.
void add_device_products();

// Bytes a second, each measured on the first call and remembered: read and written by memcpy of
// 64 MiB, read by a sum of 64 MiB. On a CUDA device both are what the copy kernel reaches.
double copy_limit();
double read_limit();

// Runs what is measured: on a CUDA device many times between two waits for it.
template <class F>
void measure(benchmark::State& state, const F& run) {
  if (device().is_cpu()) {
    for (auto _ : state) run();
    return;
  }
  constexpr int64_t kBatch = 32;
  while (state.KeepRunningBatch(kBatch)) {
    for (int64_t i = 0; i < kBatch; ++i) run();
    current_stream(device()).synchronize();
  }
}

// Ends a benchmark's report: what one iteration moved (at least: each input read once, each output
// written once) or computed, which part of the limit that is, and which part is the goal.
void report_bytes(benchmark::State& state, int64_t bytes, double limit, double goal);
// A limit of 0 is one that is not known.
void report_flops(benchmark::State& state, double flops, double limit, double goal);
// Nanoseconds for one iteration at most.
void report_goal_ns(benchmark::State& state, double goal_ns);

}  // namespace lockstep::bench
