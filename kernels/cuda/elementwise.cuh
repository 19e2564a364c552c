#pragma once

#include <tuple>

#include "lockstep/kernels/cpu/elementwise_loops.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/strided.h"

// The loops of element-wise kernels. A body is a struct with
//
//   Inputs               std::tuple of the element types of its inputs
//   Output               that of its output
//   run(a, b, ...)       one element
//
// Each element is read and written once: bytes are those of the operands that do not broadcast.
namespace lockstep::cuda {

template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T at[n];
};

// Elements of one 16-byte access of the widest operand.
template <class Body>
constexpr int pack_size() {
  return []<class... In>(std::tuple<In...>*) {
    return static_cast<int>(16 / std::max({sizeof(typename Body::Output), sizeof(In)...}));
  }(static_cast<typename Body::Inputs*>(nullptr));
}

// Doubles take twice the registers.
template <class Body>
constexpr unsigned blocks() {
  return pack_size<Body>() == 2 ? kBlocks - 1 : kBlocks;
}

template <int kInputs>
struct Pointers {
  const void* in[kInputs] = {};
  void* out = nullptr;
};

template <class Body, int n, size_t... k>
__device__ void run_pack(const Pointers<sizeof...(k)>& p, int64_t index,
                         std::index_sequence<k...>) {
  using Inputs = typename Body::Inputs;
  const std::tuple<Pack<std::tuple_element_t<k, Inputs>, n>...> packs(
      static_cast<const Pack<std::tuple_element_t<k, Inputs>, n>*>(p.in[k])[index]...);
  Pack<typename Body::Output, n> out;
  for (int i = 0; i < n; ++i) out.at[i] = Body::run(std::get<k>(packs).at[i]...);
  static_cast<Pack<typename Body::Output, n>*>(p.out)[index] = out;
}

template <class Body, size_t... k>
__device__ void run_one(const Pointers<sizeof...(k)>& p, const int64_t* at,
                        std::index_sequence<k...>) {
  static_cast<typename Body::Output*>(p.out)[at[sizeof...(k)]] = Body::run(
      static_cast<const std::tuple_element_t<k, typename Body::Inputs>*>(p.in[k])[at[k]]...);
}

// All operands lie alike and without gaps.
template <class Body, int n, int kInputs>
__global__ void __launch_bounds__(kThreads, blocks<Body>())
    dense_kernel(Pointers<kInputs> p, int64_t count) {
  constexpr auto inputs = std::make_index_sequence<kInputs>();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t packs = count / n;
  for (int64_t i = first; i < packs; i += step) run_pack<Body, n>(p, i, inputs);
  for (int64_t i = packs * n + first; i < count; i += step) {
    int64_t at[kInputs + 1];
    for (int k = 0; k <= kInputs; ++k) at[k] = i;
    run_one<Body>(p, at, inputs);
  }
}

template <class Body, int kInputs>
__global__ void __launch_bounds__(kThreads, blocks<Body>())
    strided_kernel(Pointers<kInputs> p, Indexer<kInputs + 1> indexer, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto offsets = indexer.locate(i);
    run_one<Body>(p, offsets.at, std::make_index_sequence<kInputs>());
  }
}

// out = Body::run(inputs...) for views of one shape.
template <class Body, class... Views>
void elementwise(std::string_view op, const View& out, const Views&... inputs) {
  constexpr int kInputs = sizeof...(inputs);
  static_assert(kInputs == std::tuple_size_v<typename Body::Inputs>);
  const int64_t count = out.numel();
  if (count == 0) return;
  const Pointers<kInputs> p = {{inputs.data...}, out.data};
  const View* const views[kInputs + 1] = {&inputs..., &out};
  const Indexer<kInputs + 1> indexer = make_indexer(views, kernels::memory_order(out), op);
  constexpr int n = pack_size<Body>();
  bool dense = indexer.rank <= 1;
  for (int k = 0; k <= kInputs && dense; ++k) {
    const auto address = reinterpret_cast<uintptr_t>(views[k]->data);
    const size_t bytes = static_cast<size_t>(n) * size_of(views[k]->dtype);
    dense = (indexer.rank == 0 || indexer.strides[0][k] == 1) && address % bytes == 0;
  }
  if (dense) {
    launch_kernel(grid_for((count + n - 1) / n), dim3(kThreads), dense_kernel<Body, n, kInputs>, p,
                  count);
  } else {
    launch_kernel(grid_for(count), dim3(kThreads), strided_kernel<Body, kInputs>, p, indexer,
                  count);
  }
}

}  // namespace lockstep::cuda
