#pragma once

#include <array>
#include <span>

#include "lockstep/kernels/cuda/launch.cuh"

// Steps of optimisers over lists of tensors: one launch takes up to kEntries tensors of one dtype,
// a row of the grid each. Every element of parameter, gradient and state is read once, and all but
// the gradient written once.
namespace lockstep::cuda {

inline constexpr int kEntries = 24;  // a launch's arguments hold 4 KiB

template <class T, int kArrays, class Rule>
struct Group {
  T* arrays[kEntries][kArrays] = {};  // what is written comes first
  int64_t counts[kEntries] = {};
  Rule rules[kEntries] = {};
};

// Calls run(grid, group) for the entries of one dtype T, kEntries at a time. arrays_of(entry) gives
// kArrays views, rule_of(entry) the rule.
template <class T, int kArrays, class Rule, class Entry, class Arrays, class MakeRule, class Run>
void for_each_group(std::span<const Entry> entries, const Arrays& arrays_of,
                    const MakeRule& rule_of, const Run& run) {
  Group<T, kArrays, Rule> group;
  unsigned size = 0;
  int64_t most = 0;
  const auto flush = [&] {
    if (size == 0) return;
    run(dim3(grid_for(most).x, size), group);
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

template <class T, int kArrays, int kWritten, class Rule>
__global__ void __launch_bounds__(kThreads, kBlocks) step_kernel(Group<T, kArrays, Rule> group) {
  const unsigned entry = blockIdx.y;
  const int64_t count = group.counts[entry];
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    Wide<T> lanes[kArrays];
    for (int k = 0; k < kArrays; ++k) lanes[k] = static_cast<Wide<T>>(group.arrays[entry][k][i]);
    group.rules[entry].step(lanes);
    for (int k = 0; k < kWritten; ++k) group.arrays[entry][k][i] = static_cast<T>(lanes[k]);
  }
}

// Steps by rule.step(lanes), lanes being an element of each array. The first kWritten are written.
template <class T, int kArrays, int kWritten, class Rule, class Entry, class Arrays, class MakeRule>
void step_all(std::span<const Entry> entries, const Arrays& arrays_of, const MakeRule& rule_of) {
  for_each_group<T, kArrays, Rule>(entries, arrays_of, rule_of, [](dim3 grid, const auto& group) {
    launch_kernel(grid, dim3(kThreads), step_kernel<T, kArrays, kWritten, Rule>, group);
  });
}

// Calls f(TypeTag<T>{}) for each floating T.
template <class F>
void for_each_floating(const F& f) {
  f(TypeTag<float>{});
  f(TypeTag<double>{});
  f(TypeTag<Half>{});
  f(TypeTag<BFloat16>{});
}

}  // namespace lockstep::cuda
