// A thread makes an element of the result. Forward reads two of x for each of y; backward looks for
// the first place that has a share of its element and adds from there on, in the CPU's order: each
// element of g is read twice.
#include "lockstep/kernels/resize.h"

#include <memory>
#include <vector>

#include "lockstep/kernels/cuda/places.cuh"
#include "lockstep/kernels/strided.h"

namespace lockstep::kernels {
namespace {

using cuda::Indexer;
using cuda::kThreads;
using cuda::Wide;

// Interpolation in the device's memory, its weights in the type that is computed in.
template <class C>
struct Shares {
  const int64_t* low;
  const int64_t* high;
  const C* weight;
  int64_t count;
};

template <class T>
std::shared_ptr<void> on_device(const std::vector<T>& values, Device device) {
  const size_t bytes = values.size() * sizeof(T);
  std::shared_ptr<void> out = allocate(bytes, device);
  cuda::copy(out.get(), device, values.data(), kCpu, bytes);
  return out;
}

// Operands: y, the lines of x, the place along the line.
template <class T>
__global__ void __launch_bounds__(kThreads)
    interpolate_kernel(const T* x, T* y, Shares<Wide<T>> how, Indexer<3> indexer, int64_t x_step,
                       int64_t count) {
  using C = Wide<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto at = indexer.locate(i);
    const int64_t p = at.at[2];
    const T* line = x + at.at[1];
    const C w = how.weight[p];
    const C low = static_cast<C>(line[how.low[p] * x_step]);
    const C high = static_cast<C>(line[how.high[p] * x_step]);
    y[at.at[0]] = static_cast<T>(low * (C{1} - w) + high * w);
  }
}

// The first place whose high share is that of element `p`, or of one behind it.
template <class C>
__device__ int64_t first_share(const Shares<C>& how, int64_t p) {
  int64_t begin = 0;
  int64_t end = how.count;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (how.high[middle] < p) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Operands: gx, the lines of g, the place along the line.
template <class T>
__global__ void __launch_bounds__(kThreads)
    interpolate_backward_kernel(const T* g, T* gx, Shares<Wide<T>> how, Indexer<3> indexer,
                                int64_t g_step, int64_t count) {
  using C = Wide<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto at = indexer.locate(i);
    const int64_t p = at.at[2];
    C sum = 0;
    for (int64_t k = first_share(how, p); k < how.count && how.low[k] <= p; ++k) {
      const C value = static_cast<C>(g[at.at[1] + k * g_step]);
      if (how.low[k] == p) sum += value * (C{1} - how.weight[k]);
      if (how.high[k] == p) sum += value * how.weight[k];
    }
    gx[at.at[0]] = static_cast<T>(sum);
  }
}

template <class Kernel>
void run(const View& from, const View& to, int64_t axis, const Interpolation& how,
         std::string_view op, const Kernel& kernel) {
  if (to.numel() == 0) return;
  visit_floating(to.dtype, op, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Wide<T>;
    const auto low = on_device(how.low, to.device);
    const auto high = on_device(how.high, to.device);
    const auto weight = on_device(std::vector<C>(how.weight.begin(), how.weight.end()), to.device);
    const Shares<C> shares = {
        static_cast<const int64_t*>(low.get()), static_cast<const int64_t*>(high.get()),
        static_cast<const C*>(weight.get()), static_cast<int64_t>(how.low.size())};
    const View lines = cuda::line_starts(from, to.shape, axis);
    const View places = cuda::places_along(to, to.shape, axis);
    const View* const views[3] = {&to, &lines, &places};
    cuda::launch_kernel(cuda::grid_for(to.numel()), dim3(kThreads), kernel(tag),
                        static_cast<const T*>(from.data), to.as<T>(), shares,
                        cuda::make_indexer(views, memory_order(to), op),
                        from.strides[static_cast<size_t>(axis)], to.numel());
  });
}

}  // namespace

void Interpolate::cuda(const View& x, const View& y, int64_t axis, const Interpolation& how) {
  run(x, y, axis, how, "interpolate",
      [](auto tag) { return interpolate_kernel<typename decltype(tag)::type>; });
}

void InterpolateBackward::cuda(const View& g, const View& gx, int64_t axis,
                               const Interpolation& how) {
  run(g, gx, axis, how, "interpolate",
      [](auto tag) { return interpolate_backward_kernel<typename decltype(tag)::type>; });
}

}  // namespace lockstep::kernels
