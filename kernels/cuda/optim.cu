// Steps of optimisers over lists of tensors: one launch takes up to kEntries tensors of one dtype,
// a row of the grid each. Every element of parameter, gradient and state is read once, and all but
// the gradient written once.
#include "lockstep/kernels/optim.h"

#include <cmath>

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

using cuda::kThreads;
using cuda::Wide;

constexpr int kEntries = 24;  // a launch's arguments hold 4 KiB

template <class T, int kArrays, class Rule>
struct Group {
  T* arrays[kEntries][kArrays] = {};  // the parameter first, the gradient last
  int64_t counts[kEntries] = {};
  Rule rules[kEntries] = {};
};

template <class T, int kArrays, class Rule>
__global__ void __launch_bounds__(kThreads) step_kernel(Group<T, kArrays, Rule> group) {
  const unsigned entry = blockIdx.y;
  const int64_t count = group.counts[entry];
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    Wide<T> lanes[kArrays];
    for (int k = 0; k < kArrays; ++k) lanes[k] = static_cast<Wide<T>>(group.arrays[entry][k][i]);
    group.rules[entry].step(lanes);
    for (int k = 0; k + 1 < kArrays; ++k) group.arrays[entry][k][i] = static_cast<T>(lanes[k]);
  }
}

// Launches entries of one dtype T, kEntries at a time. arrays_of(entry) gives kArrays views,
// rule_of(entry) the rule.
template <class T, int kArrays, class Rule, class Entry, class Arrays, class MakeRule>
void step_all(std::span<const Entry> entries, const Arrays& arrays_of, const MakeRule& rule_of) {
  Group<T, kArrays, Rule> group;
  unsigned size = 0;
  int64_t most = 0;
  const auto flush = [&] {
    if (size == 0) return;
    const dim3 grid(cuda::grid_for(most).x, size);
    cuda::launch_kernel(grid, dim3(kThreads), step_kernel<T, kArrays, Rule>, group);
    group = {};
    size = 0;
    most = 0;
  };
  for (const Entry& e : entries) {
    if (e.parameter.dtype != dtype_of<T>() || e.parameter.numel() == 0) continue;
    const std::array<const View*, kArrays> views = arrays_of(e);
    for (size_t k = 0; k < kArrays; ++k) group.arrays[size][k] = views[k]->template as<T>();
    group.counts[size] = e.parameter.numel();
    group.rules[size] = rule_of(e);
    most = std::max(most, group.counts[size]);
    if (++size == kEntries) flush();
  }
  flush();
}

template <class F>
void for_each_floating(const F& f) {
  f(TypeTag<float>{});
  f(TypeTag<double>{});
  f(TypeTag<Half>{});
  f(TypeTag<BFloat16>{});
}

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
      step_all<T, 2, SgdRule<C>>(
          entries,
          [](const SgdEntry& e) {
            return std::array<const View*, 2>{&e.parameter, &e.gradient};
          },
          [&](const SgdEntry&) {
            return SgdRule<C>{static_cast<C>(o.lr), static_cast<C>(o.weight_decay)};
          });
      return;
    }
    step_all<T, 3, MomentumRule<C>>(
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
    step_all<T, 4, AdamRule<C>>(
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
