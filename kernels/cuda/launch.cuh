#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <source_location>
#include <string_view>
#include <utility>

#include "lockstep/kernels/cuda/captured_graph.h"
#include "lockstep/kernels/device.h"
#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/view.h"

// How kernels are launched, here and in the emulator of tests/simt/ alike: no <<<>>>, shared memory
// by macro, no PTX.

// An array of shared memory within a kernel, and the one that the launch brings.
#ifdef SIMT_STATIC_SHARED
#define LOCKSTEP_SHARED(T, name, n) SIMT_STATIC_SHARED(T, name, n)
#else
#define LOCKSTEP_SHARED(T, name, n) __shared__ T name[n]
#endif

namespace lockstep::cuda {

// Throws Error(kDevice) that names `call`, CUDA's error and what it means.
void check(cudaError_t error, std::string_view call,
           std::source_location where = std::source_location::current());
#define LOCKSTEP_CUDA_CHECK(call) ::lockstep::cuda::check((call), #call)

// The stream that kernels of the current device are put on.
cudaStream_t stream();
// Blocks that fill the current device: more gain nothing for a kernel that walks its grid.
unsigned full_grid();

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr unsigned kThreads = 256;
// Without a number of blocks ptxas spills rather than give a thread more than 48 registers.
inline constexpr unsigned kBlocks = 3;

// What a kernel may be given on devices before sm_70, and the fastest way on all.
inline constexpr size_t kMostArgumentBytes = 4096;

// Of a thread that has to do with a graph: whether a launch is only there to renew the arguments of
// one that was captured; and what follows one that was put on a stream.
bool is_renewed(const cudaLaunchConfig_t& config, const void* kernel, void** arguments);
void note_launch(cudaStream_t stream);

// Puts kernel(arguments...) on the current device's stream.
template <class... Parameters, class... Arguments>
void launch_kernel(dim3 grid, dim3 block, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  static_assert((size_t{0} + ... + sizeof(Parameters)) <= kMostArgumentBytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream();
  const auto launch = [&](Parameters... values) {
    if (capture == nullptr) [[likely]] {
      LOCKSTEP_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, values...));
      return;
    }
    void* pointers[] = {&values..., nullptr};
    if (is_renewed(config, reinterpret_cast<const void*>(kernel), pointers)) return;
    LOCKSTEP_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, values...));
    note_launch(config.stream);
  };
  launch(static_cast<Parameters>(arguments)...);
}

// Blocks of `threads` for a kernel in which each thread takes every grid-th of `items`.
inline dim3 grid_for(int64_t items, int64_t threads = kThreads) {
  return dim3(
      static_cast<unsigned>(std::clamp<int64_t>((items + threads - 1) / threads, 1, full_grid())));
}

inline constexpr int kMaxDims = 10;

// Where element i of `kOperands` views of one shape lies, dimensions merged where all views allow.
template <int kOperands>
struct Indexer {
  int rank = 0;
  int unused = 0;
  int64_t sizes[kMaxDims] = {};  // the innermost first
  int64_t strides[kMaxDims][kOperands] = {};

  struct Offsets {
    int64_t at[kOperands];
  };
  __host__ __device__ Offsets locate(int64_t index) const {
    Offsets out = {};
    for (int d = 0; d < rank; ++d) {
      int64_t i = index;
      if (d + 1 < rank) {
        // Most indices fit 32 bits, in which a division takes a fraction of the time.
        if (index < (int64_t{1} << 31) && sizes[d] < (int64_t{1} << 31)) {
          const auto quotient = static_cast<uint32_t>(index) / static_cast<uint32_t>(sizes[d]);
          i = index - static_cast<int64_t>(quotient) * sizes[d];
          index = quotient;
        } else {
          const int64_t quotient = index / sizes[d];
          i = index - quotient * sizes[d];
          index = quotient;
        }
      }
      for (int k = 0; k < kOperands; ++k) out.at[k] += i * strides[d][k];
    }
    return out;
  }
};

// The dimensions [begin, end) but for those of size 1, outermost first.
inline Shape row_major_order(const Shape& shape, size_t begin, size_t end) {
  Shape order;
  for (size_t d = begin; d < end; ++d) {
    if (shape[d] != 1) order.push_back(static_cast<int64_t>(d));
  }
  return order;
}
inline Shape row_major_order(const Shape& shape) { return row_major_order(shape, 0, shape.size()); }

// Throws Error(kInvalidArgument) for more than kMaxDims dimensions.
void check_rank(size_t rank, std::string_view op);

// Of the dimensions `order`, outermost first. Throws as check_rank() does for what is left of them
// after merging.
template <int kOperands>
Indexer<kOperands> make_indexer(const View* const (&views)[kOperands], const Shape& order,
                                std::string_view op) {
  Shape sizes;
  Strides strides[kOperands];
  for (size_t i = order.size(); i-- > 0;) {  // from the innermost
    const auto d = static_cast<size_t>(order[i]);
    const int64_t size = views[0]->shape[d];
    bool merges = !sizes.empty();
    for (int k = 0; k < kOperands && merges; ++k) {
      merges = views[k]->strides[d] == strides[k].back() * sizes.back();
    }
    if (merges) {
      sizes.back() *= size;
      continue;
    }
    sizes.push_back(size);
    for (int k = 0; k < kOperands; ++k) strides[k].push_back(views[k]->strides[d]);
  }
  check_rank(sizes.size(), op);
  Indexer<kOperands> out;
  out.rank = static_cast<int>(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    out.sizes[d] = sizes[d];
    for (int k = 0; k < kOperands; ++k) out.strides[d][k] = strides[k][d];
  }
  return out;
}

// The type that an element is computed in: float for the 16-bit floats.
template <class T>
using Wide = std::conditional_t<is_reduced_float_v<T>, float, T>;

struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// The sum, or what `combine` is, over the lanes of a warp; every lane gets it, in one order.
template <class T, class F>
__device__ T warp_reduce(T value, const F& combine) {
  for (unsigned o = kWarp / 2; o > 0; o /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, o));
  }
  return value;
}

// The same over a block of kThreads threads. `identity` is what combine leaves alone.
template <class T, class F>
__device__ T block_reduce(T value, T identity, const F& combine) {
  LOCKSTEP_SHARED(T, partial, kThreads / kWarp);
  value = warp_reduce(value, combine);
  __syncthreads();  // an earlier call's values have been read
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = identity;
  for (unsigned w = 0; w < kThreads / kWarp; ++w) value = combine(value, partial[w]);
  return value;
}

}  // namespace lockstep::cuda
