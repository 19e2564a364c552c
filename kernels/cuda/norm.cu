// Sums of squares over lists of tensors: one launch takes up to kViews tensors of one dtype, a row
// of the grid each, a second one adds up what the blocks found. Each element is read once.
#include "lockstep/kernels/cuda/optim.cuh"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/kernels/strided.h"

namespace lockstep::kernels {
namespace {

using cuda::kThreads;
using cuda::Plus;
using cuda::Wide;

constexpr int kViews = 20;  // a launch's arguments hold 4 KiB

template <class T>
struct Squared {
  const T* data;
  int64_t count;
  double* partial;  // one for each block
  cuda::Indexer<1> indexer;
};

template <class T>
struct Group {
  Squared<T> views[kViews] = {};
};

template <class T>
__global__ void __launch_bounds__(kThreads) squares_kernel(Group<T> group) {
  const Squared<T>& view = group.views[blockIdx.y];
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  double sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < view.count; i += step) {
    const auto x =
        static_cast<double>(static_cast<Wide<T>>(view.data[view.indexer.locate(i).at[0]]));
    sum += x * x;
  }
  sum = cuda::block_reduce(sum, 0.0, Plus());
  if (threadIdx.x == 0) view.partial[blockIdx.x] = sum;
}

// sums[b] = the sum of row b of the partial ones.
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const double* partial, int64_t length, double* sums) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < length; i += kThreads) sum += partial[blockIdx.x * length + i];
  sum = cuda::block_reduce(sum, 0.0, Plus());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Fills rows of `partial`, of `length` numbers each, for the views of dtype T.
template <class T>
void partial_squares(std::span<const View> views, double* partial, int64_t length) {
  Group<T> group;
  unsigned size = 0;
  int64_t most = 0;
  const auto flush = [&] {
    if (size == 0) return;
    cuda::launch_kernel(dim3(cuda::grid_for(most).x, size), dim3(kThreads), squares_kernel<T>,
                        group);
    group = {};
    size = 0;
    most = 0;
  };
  for (size_t k = 0; k < views.size(); ++k) {
    const View& x = views[k];
    if (x.dtype != dtype_of<T>() || x.numel() == 0) continue;
    const View* const one[1] = {&x};
    group.views[size] = {x.as<T>(), x.numel(), partial + static_cast<int64_t>(k) * length,
                         cuda::make_indexer(one, memory_order(x), "l2_norm")};
    most = std::max(most, x.numel());
    if (++size == kViews) flush();
  }
  flush();
}

}  // namespace

double L2NormSquared::cuda(std::span<const View> views) {
  if (views.empty()) return 0;
  for (const View& x : views) visit_floating(x.dtype, "l2_norm", [](auto) {});
  const Device device = views[0].device;
  const int64_t length = cuda::full_grid();
  const size_t rows = views.size();
  const size_t bytes = (rows * static_cast<size_t>(length) + rows) * sizeof(double);
  const auto memory = allocate(bytes, device);
  LOCKSTEP_CUDA_CHECK(cudaMemsetAsync(memory.get(), 0, bytes, cuda::stream()));
  auto* partial = static_cast<double*>(memory.get());
  double* sums = partial + static_cast<int64_t>(rows) * length;
  cuda::for_each_floating(
      [&](auto tag) { partial_squares<typename decltype(tag)::type>(views, partial, length); });
  cuda::launch_kernel(dim3(static_cast<unsigned>(rows)), dim3(kThreads), finish_kernel, partial,
                      length, sums);
  std::vector<double> found(rows);
  cuda::copy(found.data(), kCpu, sums, device, rows * sizeof(double));
  double sum = 0;
  for (double s : found) sum += s;
  return sum;
}

}  // namespace lockstep::kernels
