#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

#include "lockstep/kernels/device.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/stream.h"

namespace lockstep::bench {

// Finds the fastest of several ways to do the same on a CUDA device.
class Fastest {
 public:
  explicit Fastest(Device device) : stream_(current_stream(device)) {}

  // `run` puts one call on the device's current stream. What it refuses counts for nothing.
  template <class F>
  void measure(const F& run) {
    try {
      run();
      // One that is far behind is not worth the time.
      if (seconds_of(run, kCalls / 8) > 2 * best_) return;
      for (int round = 0; round < kRounds; ++round) {
        best_ = std::min(best_, seconds_of(run, kCalls));
      }
    } catch (const Error&) {
    }
  }

  // 0 where no way was right.
  double rate(double flops) const { return flops / best_; }

 private:
  static constexpr int kCalls = 32;  // between two waits for the device, as in bench::measure()
  static constexpr int kRounds = 3;

  template <class F>
  double seconds_of(const F& run, int calls) const {
    stream_.synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) run();
    stream_.synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return took.count() / calls;
  }

  const Stream stream_;
  double best_ = std::numeric_limits<double>::infinity();
};

}  // namespace lockstep::bench
