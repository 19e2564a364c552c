#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>

// What this machine can do at best, measured in the same run with the threads that the library uses
// (OMP_NUM_THREADS): what bench_kernels holds its kernels against.
namespace lockstep::bench {

// Bytes a second, each measured on the first call and remembered: read and written by memcpy of
// 64 MiB, read by a sum of 64 MiB.
double copy_limit();
double read_limit();

// Ends a benchmark's report: what one iteration moved (at least: each input read once, each output
// written once) or computed, which part of the limit that is, and which part is the goal.
void report_bytes(benchmark::State& state, int64_t bytes, double limit, double goal);
void report_flops(benchmark::State& state, double flops, double limit, double goal);
// Nanoseconds for one iteration at most.
void report_goal_ns(benchmark::State& state, double goal_ns);

}  // namespace lockstep::bench
