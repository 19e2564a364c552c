// SGD and Adam; optim.cuh says what moves.
#include "lockstep/kernels/optim.h"

#include <cmath>

#include "lockstep/kernels/cuda/optim.cuh"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

using cuda::for_each_floating;
using cuda::step_all;
using cuda::Wide;

template <class C>
struct SgdRule {
  C lr, decay;
  __device__ void step(C (&lanes)[2]) const { lanes[0] -= lr * (lanes[1] + decay * lanes[0]); }
};

template <class C>
struct MomentumRule {
  C lr, decay, momentum, share;
  C own, buffered;  // the step is along own * g + buffered * b
  C keep;           // 0 on the first step, which must not look at the buffer: it may hold NaN
  __device__ void step(C (&lanes)[3]) const {
    const C gradient = lanes[2] + decay * lanes[0];
    const C old = keep != C{0} ? momentum * lanes[1] : C{0};
    const C next = old + share * gradient;
    lanes[1] = next;
    lanes[0] -= lr * (own * gradient + buffered * next);
  }
};

template <class C>
struct AdamRule {
  C beta1, beta2, rest1, rest2, step_size, scale, eps, keep, decay;
  __device__ void step(C (&lanes)[4]) const {
    const C gradient = lanes[3] + decay * lanes[0];
    const C mean = beta1 * lanes[1] + rest1 * gradient;
    const C square = beta2 * lanes[2] + rest2 * gradient * gradient;
    lanes[1] = mean;
    lanes[2] = square;
    lanes[0] = keep * lanes[0] - step_size * mean / (sqrt(square) * scale + eps);
  }
};

}  // namespace

void SgdStep::cuda(std::span<const SgdEntry> entries, const SgdOptions& o) {
  check_entries(entries, o);
  for_each_floating([&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Wide<T>;
    if (o.momentum == 0) {
      step_all<T, 2, 1, SgdRule<C>>(
          entries,
          [](const SgdEntry& e) {
            return std::array<const View*, 2>{&e.parameter, &e.gradient};
          },
          [&](const SgdEntry&) {
            return SgdRule<C>{static_cast<C>(o.lr), static_cast<C>(o.weight_decay)};
          });
      return;
    }
    step_all<T, 3, 2, MomentumRule<C>>(
        entries,
        [](const SgdEntry& e) {
          return std::array<const View*, 3>{&e.parameter, &e.momentum, &e.gradient};
        },
        [&](const SgdEntry& e) {
          return MomentumRule<C>{static_cast<C>(o.lr),
                                 static_cast<C>(o.weight_decay),
                                 static_cast<C>(o.momentum),
                                 static_cast<C>(e.has_momentum ? 1 - o.dampening : 1),
                                 static_cast<C>(o.nesterov ? 1 : 0),
                                 static_cast<C>(o.nesterov ? o.momentum : 1),
                                 static_cast<C>(e.has_momentum ? 1 : 0)};
        });
  });
}

void AdamStep::cuda(std::span<const AdamEntry> entries, const AdamOptions& o) {
  check_entries(entries, o);
  for_each_floating([&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Wide<T>;
    step_all<T, 4, 3, AdamRule<C>>(
        entries,
        [](const AdamEntry& e) {
          return std::array<const View*, 4>{&e.parameter, &e.exp_avg, &e.exp_avg_sq, &e.gradient};
        },
        [&](const AdamEntry& e) {
          const auto t = static_cast<double>(e.step);
          return AdamRule<C>{static_cast<C>(o.beta1),
                             static_cast<C>(o.beta2),
                             static_cast<C>(1 - o.beta1),
                             static_cast<C>(1 - o.beta2),
                             static_cast<C>(o.lr / (1 - std::pow(o.beta1, t))),
                             static_cast<C>(1 / std::sqrt(1 - std::pow(o.beta2, t))),
                             static_cast<C>(o.eps),
                             static_cast<C>(o.decoupled ? 1 - o.lr * o.weight_decay : 1),
                             static_cast<C>(o.decoupled ? 0 : o.weight_decay)};
        });
  });
}

}  // namespace lockstep::kernels
