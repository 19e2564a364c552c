// A fold of several ranks' inputs into each of several outputs, which may be other devices' memory:
// every rank of a two-shot all-reduce folds its block of all ranks' buffers straight into all
// ranks' results. Reads each source and writes each output once, 16 bytes at a time where all of
// them are aligned to that; the next source is on its way while one is joined.
//
// Compiled without contraction, for the CPU's bits: a scaled input is rounded before it is added.
#include "lockstep/kernels/fold.h"

#include <algorithm>

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/fold_rule.h"
#include "lockstep/kernels/text.h"

namespace lockstep::kernels {
namespace {

using cuda::kThreads;

struct Operands {
  const void* sources[kMostCudaFolds] = {};
  void* outputs[kMostCudaFolds] = {};
  int source_count = 0;
  int output_count = 0;
};

template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T at[n];
};

// Elements [i * n, (i + 1) * n).
template <class R, int n>
__device__ void fold_pack(const R& rule, const Operands& operands, int64_t i) {
  using Input = typename R::Input;
  using InputPack = Pack<Input, n>;
  const auto load = [&](int k) { return static_cast<const InputPack*>(operands.sources[k])[i]; };
  InputPack input = load(0);
  typename R::Partial partial[n];
  for (int j = 0; j < n; ++j) partial[j] = rule.begin(input.at[j]);
  if (operands.source_count > 1) input = load(1);
  for (int k = 1; k < operands.source_count; ++k) {
    const InputPack now = input;
    if (k + 1 < operands.source_count) input = load(k + 1);
    for (int j = 0; j < n; ++j) partial[j] = rule.join(partial[j], now.at[j]);
  }
  InputPack result;
  for (int j = 0; j < n; ++j) result.at[j] = rule.finish(partial[j]);
  for (int k = 0; k < operands.output_count; ++k) {
    static_cast<InputPack*>(operands.outputs[k])[i] = result;
  }
}

// Without a number of blocks ptxas spills rather than give a thread more than 48 registers.
constexpr unsigned kFoldBlocks = 2;

// The first packs * n elements as packs, the rest one by one.
template <class R, int n>
__global__ void __launch_bounds__(kThreads, kFoldBlocks)
    fold_kernel(const Operands operands, const R rule, int64_t packs, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < packs; i += step) fold_pack<R, n>(rule, operands, i);
  for (int64_t i = packs * n + first; i < count; i += step) fold_pack<R, 1>(rule, operands, i);
}

}  // namespace

void Fold::cuda(const FoldSpec& spec, const void* const* sources, void* const* outputs,
                int output_count, int64_t count) {
  if (count == 0) return;
  check(spec.ranks <= kMostCudaFolds && output_count <= kMostCudaFolds, "fold", [&] {
    return str_cat("want at most ", kMostCudaFolds, " sources and outputs at once, got ",
                   spec.ranks, " and ", output_count);
  });
  Operands operands;
  operands.source_count = spec.ranks;
  operands.output_count = output_count;
  std::copy_n(sources, spec.ranks, operands.sources);
  std::copy_n(outputs, output_count, operands.outputs);
  uintptr_t addresses = 0;
  for (int k = 0; k < spec.ranks; ++k) addresses |= reinterpret_cast<uintptr_t>(sources[k]);
  for (int k = 0; k < output_count; ++k) addresses |= reinterpret_cast<uintptr_t>(outputs[k]);
  visit_fold_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    constexpr int n = static_cast<int>(16 / sizeof(typename R::Input));
    const int64_t packs = addresses % 16 == 0 ? count / n : 0;
    cuda::launch_kernel(cuda::grid_for(std::max(packs, count - packs * n)), dim3(kThreads),
                        fold_kernel<R, n>, operands, rule, packs, count);
  });
}

}  // namespace lockstep::kernels
