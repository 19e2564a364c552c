// Sums of squares over lists of tensors, and changes of all of their elements: one launch takes up
// to kViews tensors of one dtype, a row of the grid each; of sums, a second one adds up what the
// blocks found. Each element is read once, and written once where it changes.
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/kernels/change_math.h"
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
struct Listed {
  T* data;
  int64_t count;
  double* partial;  // one for each block; null where no sum is wanted
  cuda::Indexer<1> indexer;
};

template <class T>
struct Group {
  Listed<T> views[kViews] = {};
};

template <bool kSums, class T, class Change>
__global__ void __launch_bounds__(kThreads) change_kernel(Group<T> group, Change change) {
  const Listed<T>& view = group.views[blockIdx.y];
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  double sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < view.count; i += step) {
    T* place = view.data + view.indexer.locate(i).at[0];
    T element = *place;
    if constexpr (!std::is_same_v<Change, Unchanged>) {
      element = static_cast<T>(change(static_cast<Wide<T>>(element)));
      *place = element;
    }
    if constexpr (kSums) {
      const auto x = static_cast<double>(static_cast<Wide<T>>(element));
      sum += x * x;
    }
  }
  if constexpr (kSums) {
    sum = cuda::block_reduce(sum, 0.0, Plus());
    if (threadIdx.x == 0) view.partial[blockIdx.x] = sum;
  }
}

// sums[b] = the sum of row b of the partial ones.
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const double* partial, int64_t length, double* sums) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < length; i += kThreads) sum += partial[blockIdx.x * length + i];
  sum = cuda::block_reduce(sum, 0.0, Plus());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Goes over the views of dtype T. Where sums are wanted, fills rows of `partial`, of `length`
// numbers each.
template <bool kSums, class T, class Change>
void change_views(std::string_view op, std::span<const View> views, const Change& change,
                  double* partial, int64_t length) {
  Group<T> group;
  unsigned size = 0;
  int64_t most = 0;
  const auto flush = [&] {
    if (size == 0) return;
    cuda::launch_kernel(dim3(cuda::grid_for(most).x, size), dim3(kThreads),
                        change_kernel<kSums, T, Change>, group, change);
    group = {};
    size = 0;
    most = 0;
  };
  for (size_t k = 0; k < views.size(); ++k) {
    const View& x = views[k];
    if (x.dtype != dtype_of<T>() || x.numel() == 0) continue;
    const View* const one[1] = {&x};
    group.views[size] = {x.as<T>(), x.numel(),
                         kSums ? partial + static_cast<int64_t>(k) * length : nullptr,
                         cuda::make_indexer(one, memory_order(x), op)};
    most = std::max(most, x.numel());
    if (++size == kViews) flush();
  }
  flush();
}

// Changes all elements of all views by what change_of(TypeTag<T>{}) gives for their dtypes.
template <bool kSums, class MakeChange>
void change_all(std::string_view op, std::span<const View> views, const MakeChange& change_of,
                double* partial = nullptr, int64_t length = 0) {
  for (const View& x : views) visit_floating(x.dtype, op, [](auto) {});
  cuda::for_each_floating([&](auto tag) {
    change_views<kSums, typename decltype(tag)::type>(op, views, change_of(tag), partial, length);
  });
}

// The same, and the sum of the squares of what comes out.
template <class MakeChange>
double change_and_sum(std::string_view op, std::span<const View> views,
                      const MakeChange& change_of) {
  if (views.empty()) return 0;
  const Device device = views[0].device;
  const int64_t length = cuda::full_grid();
  const size_t rows = views.size();
  const size_t bytes = (rows * static_cast<size_t>(length) + rows) * sizeof(double);
  const auto memory = allocate(bytes, device);
  LOCKSTEP_CUDA_CHECK(cudaMemsetAsync(memory.get(), 0, bytes, cuda::stream()));
  auto* partial = static_cast<double*>(memory.get());
  double* sums = partial + static_cast<int64_t>(rows) * length;
  change_all<true>(op, views, change_of, partial, length);
  cuda::launch_kernel(dim3(static_cast<unsigned>(rows)), dim3(kThreads), finish_kernel, partial,
                      length, sums);
  std::vector<double> found(rows);
  cuda::copy(found.data(), kCpu, sums, device, rows * sizeof(double));
  double sum = 0;
  for (double s : found) sum += s;
  return sum;
}

auto scaled_by(double factor) {
  return [factor](auto tag) {
    using T = typename decltype(tag)::type;
    return Scaled<Wide<T>>{constant_of<T, Wide<T>>(factor)};
  };
}

}  // namespace

double L2NormSquared::cuda(std::span<const View> views) {
  return change_and_sum("l2_norm", views, [](auto) { return Unchanged(); });
}

void ScaleAll::cuda(std::span<const View> views, double factor) {
  change_all<false>("scale_all", views, scaled_by(factor));
}

double ScaleAllNormSquared::cuda(std::span<const View> views, double factor) {
  return change_and_sum("scale_all", views, scaled_by(factor));
}

void ClampAll::cuda(std::span<const View> views, double low, double high) {
  change_all<false>("clamp_all", views, [=](auto tag) {
    using T = typename decltype(tag)::type;
    return Clamped<Wide<T>>{constant_of<T, Wide<T>>(low), constant_of<T, Wide<T>>(high)};
  });
}

}  // namespace lockstep::kernels
