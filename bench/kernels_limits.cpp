#include "kernels_limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/simd.h"

namespace lockstep::bench {
namespace {

constexpr int64_t kBytes = 64 << 20;
constexpr int kRounds = 15;

Device where = kCpu;

// The best of several rounds: a limit is what the machine can do when nothing disturbs it.
template <class F>
double best_seconds(const F& f) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

double measure_copy() {
  const auto from = allocate(kBytes);
  const auto to = allocate(kBytes);
  std::memset(from.get(), 1, kBytes);
  std::memset(to.get(), 2, kBytes);
  const double seconds = best_seconds([&] {
    parallel_for(kBytes, 1 << 20, [&](int64_t begin, int64_t end) {
      std::memcpy(static_cast<char*>(to.get()) + begin,
                  static_cast<const char*>(from.get()) + begin, static_cast<size_t>(end - begin));
    });
    benchmark::ClobberMemory();
  });
  return 2.0 * kBytes / seconds;
}

double measure_device_copy() {
  constexpr int kCopies = 20;
  const auto from = allocate(kBytes, where);
  const auto to = allocate(kBytes, where);
  const Shape shape = {kBytes / 4};
  const View x{from.get(), DType::kF32, where, shape, {1}};
  const View y{to.get(), DType::kF32, where, shape, {1}};
  launch<kernels::Fill>(where, x, 1.0);
  const double seconds = best_seconds([&] {
    for (int i = 0; i < kCopies; ++i) launch<kernels::Copy>(where, x, y);
    current_stream(where).synchronize();
  });
  return 2.0 * kBytes * kCopies / seconds;
}

double measure_read() {
  const auto memory = allocate(kBytes);
  std::memset(memory.get(), 1, kBytes);
  const auto* words = static_cast<const uint64_t*>(memory.get());
  const double seconds = best_seconds([&] {
    parallel_for(kBytes / 8, 1 << 17, [&](int64_t begin, int64_t end) {
      constexpr int64_t kParts = 32;  // one sum alone waits for its additions
      uint64_t total = 0;
      simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
        uint64_t part[kParts] = {};
        for (int64_t i = begin; i + kParts <= end; i += kParts) {
#pragma omp simd
          for (int64_t k = 0; k < kParts; ++k) part[k] += words[i + k];
        }
        for (const uint64_t sum : part) total += sum;
      });
      benchmark::DoNotOptimize(total);
    });
  });
  return static_cast<double>(kBytes) / seconds;
}

}  // namespace

Device device() { return where; }
void set_device(Device device) { where = device; }

double copy_limit() {
  static const double limit = where.is_cpu() ? measure_copy() : measure_device_copy();
  return limit;
}

double read_limit() {
  static const double limit = where.is_cpu() ? measure_read() : copy_limit();
  return limit;
}

void report_bytes(benchmark::State& state, int64_t bytes, double limit, double goal) {
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["of_limit"] = benchmark::Counter(static_cast<double>(bytes) / limit,
                                                  benchmark::Counter::kIsIterationInvariantRate);
  state.counters["goal"] = goal;
}

void report_flops(benchmark::State& state, double flops, double limit, double goal) {
  state.counters["flop/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  if (limit == 0) return;
  state.counters["of_limit"] =
      benchmark::Counter(flops / limit, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["goal"] = goal;
}

void report_goal_ns(benchmark::State& state, double goal_ns) {
  state.counters["goal_ns"] = goal_ns;
}

}  // namespace lockstep::bench
