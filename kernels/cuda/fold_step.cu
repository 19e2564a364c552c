// The steps of a ring's fold: each takes a partial result, which may be another device's memory,
// adds this rank's input, and leaves what goes on. 16 bytes of input at a time where all of its
// operands are aligned to that.
//
// Compiled without contraction, for the CPU's bits: a scaled input is rounded before it is added.
#include <algorithm>
#include <type_traits>

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/fold.h"
#include "lockstep/kernels/fold_rule.h"

namespace lockstep::kernels {
namespace {

using cuda::kBlocks;
using cuda::kThreads;

// No more alignment than a load has: partial results may be wider than inputs.
template <class T, int n>
struct alignas(std::min<size_t>(sizeof(T) * n, 16)) Pack {
  T at[n];
};

// What a step does to an element: to this rank's input alone, or to what comes and this rank's
// input.
template <class R>
struct Begin {
  using Incoming = typename R::Input;
  using Outgoing = typename R::Partial;
  R rule;
  __device__ Outgoing operator()(Incoming input, Incoming) const { return rule.begin(input); }
};
template <class R>
struct Step {
  using Incoming = typename R::Partial;
  using Outgoing = typename R::Partial;
  R rule;
  __device__ Outgoing operator()(Incoming partial, typename R::Input input) const {
    return rule.join(partial, input);
  }
};
template <class R>
struct Finish {
  using Incoming = typename R::Partial;
  using Outgoing = typename R::Input;
  R rule;
  __device__ Outgoing operator()(Incoming partial, typename R::Input input) const {
    return rule.finish(rule.join(partial, input));
  }
};

// Where these are a copy, and a Step: every kernel less is compiled for each architecture.
template <class R>
constexpr bool kSamePartial = std::is_same_v<typename R::Partial, typename R::Input>;
template <class R>
constexpr bool kBeginCopies =
    kSamePartial<R> && !(is_floating_v<typename R::Element> &&
                         (R::kJoin == Join::kAvg || R::kJoin == Join::kAvgExact));
template <class R>
constexpr bool kFinishIsStep = kSamePartial<R> &&
                               (!is_floating_v<typename R::Element> || R::kJoin == Join::kMin ||
                                R::kJoin == Join::kMax);

struct Operands {
  const void* incoming;  // the same as input where nothing comes
  const void* input;
  void* output;
};

// Elements [i * n, (i + 1) * n).
template <class Input, int n, class S>
__device__ void step_pack(const S& step, const Operands& operands, int64_t i) {
  const auto incoming = static_cast<const Pack<typename S::Incoming, n>*>(operands.incoming)[i];
  const auto input = static_cast<const Pack<Input, n>*>(operands.input)[i];
  Pack<typename S::Outgoing, n> out;
  for (int j = 0; j < n; ++j) out.at[j] = step(incoming.at[j], input.at[j]);
  static_cast<decltype(out)*>(operands.output)[i] = out;
}

// The first packs * n elements as packs, the rest one by one.
template <class Input, int n, class S>
__global__ void __launch_bounds__(kThreads, kBlocks)
    fold_step_kernel(const Operands operands, const S step, int64_t packs, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < packs; i += stride) step_pack<Input, n>(step, operands, i);
  for (int64_t i = packs * n + first; i < count; i += stride) {
    step_pack<Input, 1>(step, operands, i);
  }
}

template <template <class> class S, class R>
void launch_step(const S<R>& step, const Operands& operands, int64_t count) {
  using Input = typename R::Input;
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(operands.incoming) |
                              reinterpret_cast<uintptr_t>(operands.input) |
                              reinterpret_cast<uintptr_t>(operands.output);
  constexpr int n = static_cast<int>(16 / sizeof(Input));
  const int64_t packs = addresses % 16 == 0 ? count / n : 0;
  cuda::launch_kernel(cuda::grid_for(std::max(packs, count - packs * n)), dim3(kThreads),
                      fold_step_kernel<Input, n, S<R>>, operands, step, packs, count);
}

}  // namespace

void FoldBegin::cuda(const FoldSpec& spec, const void* source, void* partial, int64_t count) {
  if (count == 0) return;
  visit_fold_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    if constexpr (kBeginCopies<R>) {
      const size_t bytes = static_cast<size_t>(count) * sizeof(typename R::Input);
      LOCKSTEP_CUDA_CHECK(
          cudaMemcpyAsync(partial, source, bytes, cudaMemcpyDefault, cuda::stream()));
    } else {
      launch_step(Begin<R>{rule}, {source, source, partial}, count);
    }
  });
}

void FoldStep::cuda(const FoldSpec& spec, const void* partial, const void* source, void* output,
                    int64_t count) {
  if (count == 0) return;
  visit_fold_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    launch_step(Step<R>{rule}, {partial, source, output}, count);
  });
}

void FoldFinish::cuda(const FoldSpec& spec, const void* partial, const void* source, void* output,
                      int64_t count) {
  if (count == 0) return;
  visit_fold_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    using S = std::conditional_t<kFinishIsStep<R>, Step<R>, Finish<R>>;
    launch_step(S{rule}, {partial, source, output}, count);
  });
}

}  // namespace lockstep::kernels
