#pragma once

#include <chrono>

namespace lockstep {

// While one lives, adds up the time that this thread spends inside of launch(), so that a benchmark
// can say how much of a step is not kernels. Not nested.
class KernelClock {
 public:
  KernelClock() { current = this; }
  ~KernelClock() { current = nullptr; }
  KernelClock(const KernelClock&) = delete;
  KernelClock& operator=(const KernelClock&) = delete;

  std::chrono::nanoseconds in_kernels() const { return in_kernels_; }

  // Null in a thread without one, which is the rule: a kernel costs one comparison more.
  static inline constinit thread_local KernelClock* current = nullptr;

  // The time until its end counts.
  class Span {
   public:
    explicit Span(KernelClock* clock) : clock_(clock) {
      if (clock_ != nullptr) [[unlikely]]
        start_ = std::chrono::steady_clock::now();
    }
    ~Span() {
      if (clock_ != nullptr) [[unlikely]]
        clock_->in_kernels_ += std::chrono::steady_clock::now() - start_;
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    KernelClock* clock_;
    std::chrono::steady_clock::time_point start_;
  };

 private:
  std::chrono::nanoseconds in_kernels_{0};
};

}  // namespace lockstep
