// RMSprop and Adagrad; optim.cuh says what moves.
#include "lockstep/kernels/cuda/optim.cuh"
#include "lockstep/kernels/optim.h"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

using cuda::Wide;

// Lanes: the parameter, square_avg, then momentum_buffer and grad_avg where there are any, and the
// gradient.
template <class C, bool kMomentum, bool kCentered>
struct RMSpropRule {
  static constexpr int kMean = 2 + int{kMomentum};
  static constexpr int kGradient = kMean + int{kCentered};
  C lr, alpha, rest, eps, decay, momentum;
  __device__ void step(C (&lanes)[kGradient + 1]) const {
    const C gradient = lanes[kGradient] + decay * lanes[0];
    const C square = alpha * lanes[1] + rest * gradient * gradient;
    lanes[1] = square;
    C variance = square;
    if constexpr (kCentered) {
      const C mean = lanes[kMean] + rest * (gradient - lanes[kMean]);
      lanes[kMean] = mean;
      variance = square - mean * mean;
    }
    C along = gradient / (sqrt(variance) + eps);
    if constexpr (kMomentum) {
      along = momentum * lanes[2] + along;
      lanes[2] = along;
    }
    lanes[0] -= lr * along;
  }
};

template <class T, bool kMomentum, bool kCentered>
void rmsprop(std::span<const RMSpropEntry> entries, const RMSpropOptions& o) {
  using C = Wide<T>;
  using Rule = RMSpropRule<C, kMomentum, kCentered>;
  constexpr int kArrays = Rule::kGradient + 1;
  cuda::step_all<T, kArrays, kArrays - 1, Rule>(
      entries,
      [](const RMSpropEntry& e) {
        std::array<const View*, kArrays> views = {&e.parameter, &e.square_avg};
        if constexpr (kMomentum) views[2] = &e.momentum_buffer;
        if constexpr (kCentered) views[Rule::kMean] = &e.grad_avg;
        views[Rule::kGradient] = &e.gradient;
        return views;
      },
      [&](const RMSpropEntry&) {
        return Rule{static_cast<C>(o.lr),           static_cast<C>(o.alpha),
                    static_cast<C>(1 - o.alpha),    static_cast<C>(o.eps),
                    static_cast<C>(o.weight_decay), static_cast<C>(o.momentum)};
      });
}

template <class C>
struct AdagradRule {
  C rate, eps, decay;
  __device__ void step(C (&lanes)[3]) const {
    const C gradient = lanes[2] + decay * lanes[0];
    const C sum = lanes[1] + gradient * gradient;
    lanes[1] = sum;
    lanes[0] -= rate * gradient / (sqrt(sum) + eps);
  }
};

}  // namespace

void RMSpropStep::cuda(std::span<const RMSpropEntry> entries, const RMSpropOptions& options) {
  check_entries(entries, options);
  cuda::for_each_floating([&](auto tag) {
    using T = typename decltype(tag)::type;
    if (options.momentum != 0) {
      options.centered ? rmsprop<T, true, true>(entries, options)
                       : rmsprop<T, true, false>(entries, options);
    } else {
      options.centered ? rmsprop<T, false, true>(entries, options)
                       : rmsprop<T, false, false>(entries, options);
    }
  });
}

void AdagradStep::cuda(std::span<const AdagradEntry> entries, const AdagradOptions& o) {
  check_entries(entries, o);
  cuda::for_each_floating([&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Wide<T>;
    cuda::step_all<T, 3, 2, AdagradRule<C>>(
        entries,
        [](const AdagradEntry& e) {
          return std::array<const View*, 3>{&e.parameter, &e.sum, &e.gradient};
        },
        [&](const AdagradEntry& e) {
          return AdagradRule<C>{
              static_cast<C>(o.lr / (1 + static_cast<double>(e.step - 1) * o.lr_decay)),
              static_cast<C>(o.eps), static_cast<C>(o.weight_decay)};
        });
  });
}

}  // namespace lockstep::kernels
