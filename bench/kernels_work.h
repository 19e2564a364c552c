#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <string>

#include "kernels_limits.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"

// How the benchmarks of memory-bound kernels are written.
namespace lockstep::bench {

inline constexpr int64_t kSide = 4096;
inline constexpr int64_t kCount = kSide * kSide;  // of f32, 64 MiB
inline constexpr int64_t kSize = kCount * 4;

// What one iteration runs, and the bytes that it has to move.
struct Work {
  int64_t bytes;
  std::function<void()> run;
};

// The part of a limit that is wanted: of a CPU, where 0 says that none is set, and of a device.
struct Goal {
  double (*limit)();
  double on_cpu;
  double on_device = 0.85;

  double fraction() const { return device().is_cpu() ? on_cpu : on_device; }
};
inline constexpr Goal kCopy = {&copy_limit, 0.9};
inline constexpr Goal kRead = {&read_limit, 0.9};
inline constexpr Goal kCopyWithMath = {&copy_limit, 0.8};
inline constexpr Goal kReadWithMath = {&read_limit, 0.8};
inline constexpr Goal kStep = {&copy_limit, 0.85};
inline constexpr Goal kOnDevice = {&copy_limit, 0};
inline constexpr Goal kNone = {&copy_limit, 0, 0};  // not memory alone decides

inline void add_work(const std::string& name, Goal goal, std::function<Work()> make) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [goal, make](benchmark::State& state) {
                                 const double limit = goal.limit();
                                 const Work work = make();
                                 work.run();
                                 measure(state, work.run);
                                 report_bytes(state, work.bytes, limit, goal.fraction());
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

// Between 0.5 and 1.5.
inline Tensor numbers(const Shape& shape) { return (rand(shape) + 0.5).to(device()); }

inline Tensor places(int64_t end, const Shape& shape) {
  return randint(0, end, shape).to(device());
}

}  // namespace lockstep::bench
