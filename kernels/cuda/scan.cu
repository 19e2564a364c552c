// Running sums. Where lines lie side by side in memory and are many, a thread takes a line. Else a
// block takes a line, or a piece of one where there are fewer lines than the device has room for:
// the pieces are summed first, and each begins with the sum of those before it. The order of
// additions depends on shapes and strides alone. Reads each element once, in pieces twice.
#include "lockstep/kernels/scan.h"

#include <algorithm>

#include "lockstep/kernels/cpu/added.h"
#include "lockstep/kernels/cuda/places.cuh"

namespace lockstep::kernels {
namespace {

using cuda::Indexer;
using cuda::kThreads;
using cuda::kWarp;

template <class T>
using ScanSum = std::conditional_t<std::is_same_v<T, float>, double, Accumulator<T>>;
template <class T>
using ScanResult = std::conditional_t<is_floating_v<T>, T, int64_t>;

// Integers wrap.
struct Added {
  template <class S>
  __device__ S operator()(S a, S b) const {
    return added(a, b);
  }
};

struct Plan {
  Indexer<2> lines;  // of x, of y
  int64_t line_count;
  int64_t length;
  int64_t step[2];
  int64_t last;  // where the scan begins if it goes in reverse, else 0
  int64_t pieces;
  int64_t piece_length;
};

// How far along its line the k-th summand is.
__device__ int64_t along(const Plan& plan, int64_t k) { return plan.last == 0 ? k : plan.last - k; }

template <class T>
__device__ ScanSum<T> summand(const T* line, const Plan& plan, int64_t k) {
  return static_cast<ScanSum<T>>(static_cast<Lane<T>>(line[along(plan, k) * plan.step[0]]));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    columns_kernel(const T* x, ScanResult<T>* y, Plan plan) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t line = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; line < plan.line_count;
       line += step) {
    const auto at = plan.lines.locate(line);
    ScanSum<T> sum = 0;
    for (int64_t k = 0; k < plan.length; ++k) {
      sum = added(sum, summand(x + at.at[0], plan, k));
      y[at.at[1] + along(plan, k) * plan.step[1]] = static_cast<ScanResult<T>>(sum);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    piece_sums_kernel(const T* x, Plan plan, ScanSum<T>* sums) {
  for (int64_t i = blockIdx.x; i < plan.line_count * plan.pieces; i += gridDim.x) {
    const T* line = x + plan.lines.locate(i / plan.pieces).at[0];
    const int64_t begin = i % plan.pieces * plan.piece_length;
    const int64_t end =
        begin + plan.piece_length < plan.length ? begin + plan.piece_length : plan.length;
    ScanSum<T> sum = 0;
    for (int64_t k = begin + threadIdx.x; k < end; k += kThreads) {
      sum = added(sum, summand(line, plan, k));
    }
    sum = cuda::block_reduce(sum, ScanSum<T>{0}, Added());
    if (threadIdx.x == 0) sums[i] = sum;
  }
}

// The sum of the block's values up to this thread's, and of all.
template <class S>
struct Scanned {
  S up_to;
  S all;
};
template <class S>
__device__ Scanned<S> scan_block(S value) {
  LOCKSTEP_SHARED(S, in_warps, kThreads / kWarp);
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  for (unsigned o = 1; o < kWarp; o *= 2) {
    const S below = __shfl_up_sync(cuda::kAllLanes, value, o);
    if (lane >= o) value = added(below, value);
  }
  __syncthreads();  // an earlier call's sums have been read
  if (lane == kWarp - 1) in_warps[warp] = value;
  __syncthreads();
  S before = 0, all = 0;
  for (unsigned w = 0; w < kThreads / kWarp; ++w) {
    if (w == warp) before = all;
    all = added(all, in_warps[w]);
  }
  return {added(before, value), all};
}

// `sums`: of the pieces, where there are several.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scan_kernel(const T* x, ScanResult<T>* y, Plan plan, const ScanSum<T>* sums) {
  using S = ScanSum<T>;
  for (int64_t i = blockIdx.x; i < plan.line_count * plan.pieces; i += gridDim.x) {
    const int64_t piece = i % plan.pieces;
    S before = 0;
    if (plan.pieces > 1) {
      for (int64_t p = threadIdx.x; p < piece; p += kThreads) {
        before = added(before, sums[i - piece + p]);
      }
      before = cuda::block_reduce(before, S{0}, Added());
    }
    const auto at = plan.lines.locate(i / plan.pieces);
    const int64_t begin = piece * plan.piece_length;
    const int64_t end =
        begin + plan.piece_length < plan.length ? begin + plan.piece_length : plan.length;
    for (int64_t first = begin; first < end; first += kThreads) {
      const int64_t k = first + threadIdx.x;
      const Scanned<S> sum = scan_block(k < end ? summand(x + at.at[0], plan, k) : S{0});
      if (k < end) {
        y[at.at[1] + along(plan, k) * plan.step[1]] =
            static_cast<ScanResult<T>>(added(before, sum.up_to));
      }
      before = added(before, sum.all);
    }
  }
}

template <class T>
void scan(const View& x, const View& y, Plan plan) {
  using S = ScanSum<T>;
  const auto* in = static_cast<const T*>(x.data);
  auto* out = y.as<ScanResult<T>>();
  const int64_t room = cuda::full_grid();
  const bool side_by_side = plan.lines.rank > 0 && plan.lines.strides[0][0] == 1;
  if (plan.length <= 32 || (side_by_side && plan.line_count >= room * kWarp)) {
    cuda::launch_kernel(cuda::grid_for(plan.line_count), dim3(kThreads), columns_kernel<T>, in, out,
                        plan);
    return;
  }
  // A piece is worth a block if each thread of it adds several elements.
  plan.pieces = std::clamp<int64_t>(plan.length / (16 * kThreads), 1,
                                    std::max<int64_t>(1, room / plan.line_count));
  plan.piece_length = (plan.length + plan.pieces - 1) / plan.pieces;
  const int64_t count = plan.line_count * plan.pieces;
  std::shared_ptr<void> memory;
  if (plan.pieces > 1) {
    memory = allocate(static_cast<size_t>(count) * sizeof(S), x.device);
    cuda::launch_kernel(cuda::grid_for(count, 1), dim3(kThreads), piece_sums_kernel<T>, in, plan,
                        static_cast<S*>(memory.get()));
  }
  cuda::launch_kernel(cuda::grid_for(count, 1), dim3(kThreads), scan_kernel<T>, in, out, plan,
                      static_cast<const S*>(memory.get()));
}

}  // namespace

void CumSum::cuda(const View& x, const View& y, int64_t axis, bool reverse) {
  if (x.numel() == 0) return;
  const auto d = static_cast<size_t>(axis);
  Plan plan = {};
  plan.length = x.shape[d];
  plan.line_count = x.numel() / plan.length;
  plan.step[0] = x.strides[d];
  plan.step[1] = y.strides[d];
  plan.last = reverse ? plan.length - 1 : 0;
  const View* const views[2] = {&x, &y};
  plan.lines = cuda::make_indexer(views, cuda::dims_but(x.shape, axis), "cumsum");
  visit_dtype(x.dtype, [&](auto tag) { scan<typename decltype(tag)::type>(x, y, plan); });
}

}  // namespace lockstep::kernels
