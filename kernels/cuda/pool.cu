// Pooling, an element of the result a thread, in the order of its memory: windows are gathered from
// what they cover, and gradients from the windows that cover an element, in row-major order of
// these. What is read once for each window that sees it comes from the cache but for the first
// time.
#include "lockstep/kernels/pool.h"

#include <limits>

#include "lockstep/kernels/cuda/places.cuh"
#include "lockstep/kernels/strided.h"
#include "lockstep/kernels/text.h"

namespace lockstep::kernels {
namespace {

using cuda::Indexer;
using cuda::kThreads;
using cuda::Wide;

// A plane (H, W) of one sample and channel.
template <class T>
struct Plane {
  T* data;
  int64_t size[2];
  int64_t step[2];

  __device__ T& at(int64_t h, int64_t w) const { return data[h * step[0] + w * step[1]]; }
};

// What elements of y (N, C, H, W) meet: two other tensors' planes of the same N and C. Operands: y,
// the planes, and how far down and right in its own plane an element is.
struct Planes {
  Indexer<5> indexer;
  int64_t size[2][2];
  int64_t step[2][2];
  int64_t count;

  struct Place {
    int64_t y;
    int64_t plane[2];
    int64_t h;
    int64_t w;
  };
  __device__ Place locate(int64_t i) const {
    const auto at = indexer.locate(i);
    return {at.at[0], {at.at[1], at.at[2]}, at.at[3], at.at[4]};
  }
  template <class T>
  __device__ Plane<T> plane(T* data, int k, const Place& at) const {
    return {data + at.plane[k], {size[k][0], size[k][1]}, {step[k][0], step[k][1]}};
  }
};

Planes make_planes(const View& y, const View& a, const View& b, std::string_view op) {
  const auto with_strides = [&](const View& x, Strides strides) {
    View out = x;
    out.shape = y.shape;
    out.strides = std::move(strides);
    return out;
  };
  const View a_planes = with_strides(a, {a.strides[0], a.strides[1], 0, 0});
  const View b_planes = with_strides(b, {b.strides[0], b.strides[1], 0, 0});
  const View down = with_strides(y, {0, 0, 1, 0});
  const View right = with_strides(y, {0, 0, 0, 1});
  const View* const views[5] = {&y, &a_planes, &b_planes, &down, &right};
  Planes out = {};
  out.indexer = cuda::make_indexer(views, memory_order(y), op);
  for (size_t d : {0, 1}) {
    out.size[0][d] = a.shape[2 + d];
    out.size[1][d] = b.shape[2 + d];
    out.step[0][d] = a.strides[2 + d];
    out.step[1][d] = b.strides[2 + d];
  }
  out.count = y.numel();
  return out;
}

// Pool2dParams as a launch carries them.
struct Windows {
  int64_t kernel[2];
  int64_t stride[2];
  int64_t padding[2];
  int64_t dilation[2];
  int64_t count_include_pad;
};

// The average's windows are not dilated.
Windows windows_of(const Pool2dParams& q, bool dilated) {
  return {{q.kernel[0], q.kernel[1]},
          {q.stride[0], q.stride[1]},
          {q.padding[0], q.padding[1]},
          {dilated ? q.dilation[0] : 1, dilated ? q.dilation[1] : 1},
          q.count_include_pad ? 1 : 0};
}

// The windows along one dimension that reach element i: from `first` to before `end`.
struct Reach {
  int64_t first;
  int64_t end;
};
__device__ Reach windows_at(int64_t i, int64_t windows, const Windows& q, size_t axis) {
  const int64_t from_start = i + q.padding[axis];
  const int64_t reach = q.dilation[axis] * (q.kernel[axis] - 1);
  const int64_t stride = q.stride[axis];
  const int64_t first = from_start > reach ? (from_start - reach + stride - 1) / stride : 0;
  const int64_t end = from_start / stride + 1;
  return {first, end < windows ? end : windows};
}

// How many elements the average's window o covers along one dimension.
__device__ int64_t covered(int64_t o, int64_t size, const Windows& q, size_t axis) {
  const int64_t begin = o * q.stride[axis] - q.padding[axis];
  const int64_t end = begin + q.kernel[axis];
  return (end < size ? end : size) - (begin > 0 ? begin : 0);
}
template <class C, class T>
__device__ C divisor_of(int64_t oh, int64_t ow, const Plane<T>& x, const Windows& q) {
  return static_cast<C>(q.count_include_pad != 0
                            ? q.kernel[0] * q.kernel[1]
                            : covered(oh, x.size[0], q, 0) * covered(ow, x.size[1], q, 1));
}

// Calls f(h, w) for what the window at (oh, ow) sees of a plane, row by row.
template <class T, class F>
__device__ void for_each_tap(const Plane<T>& x, int64_t oh, int64_t ow, const Windows& q,
                             const F& f) {
  for (int64_t kh = 0; kh < q.kernel[0]; ++kh) {
    const int64_t h = oh * q.stride[0] - q.padding[0] + kh * q.dilation[0];
    if (h < 0 || h >= x.size[0]) continue;
    for (int64_t kw = 0; kw < q.kernel[1]; ++kw) {
      const int64_t w = ow * q.stride[1] - q.padding[1] + kw * q.dilation[1];
      if (w >= 0 && w < x.size[1]) f(h, w);
    }
  }
}

// Planes: x, the places.
template <class T>
__global__ void __launch_bounds__(kThreads)
    max_kernel(const T* x, T* y, int32_t* places, Planes p, Windows q) {
  using C = Wide<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) {
    const auto at = p.locate(i);
    const Plane<const T> from = p.plane(x, 0, at);
    T best = {};
    int64_t place = -1;
    for_each_tap(from, at.h, at.w, q, [&](int64_t h, int64_t w) {
      const T v = from.at(h, w);
      const C value = static_cast<C>(v), old = static_cast<C>(best);
      if (place >= 0 && (value <= old || old != old)) return;  // the first of equals, or NaN, stays
      best = v;
      place = h * from.size[1] + w;
    });
    y[at.y] = best;
    p.plane(places, 1, at).at(at.h, at.w) = static_cast<int32_t>(place);
  }
}

// Planes: g, the places.
template <class T>
__global__ void __launch_bounds__(kThreads)
    max_backward_kernel(const T* g, const int32_t* places, T* gx, Planes p, Windows q,
                        int64_t width) {
  using C = Wide<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) {
    const auto at = p.locate(i);
    const Plane<const T> from = p.plane(g, 0, at);
    const Plane<const int32_t> chosen = p.plane(places, 1, at);
    const Reach rows = windows_at(at.h, from.size[0], q, 0);
    const Reach columns = windows_at(at.w, from.size[1], q, 1);
    C sum = 0;
    for (int64_t oh = rows.first; oh < rows.end; ++oh) {
      for (int64_t ow = columns.first; ow < columns.end; ++ow) {
        if (chosen.at(oh, ow) == at.h * width + at.w) sum += static_cast<C>(from.at(oh, ow));
      }
    }
    gx[at.y] = static_cast<T>(sum);
  }
}

// Planes: x, the places.
template <class T>
__global__ void __launch_bounds__(kThreads)
    max_gather_kernel(const T* x, const int32_t* places, T* y, Planes p) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) {
    const auto at = p.locate(i);
    const Plane<const T> from = p.plane(x, 0, at);
    const int64_t place = p.plane(places, 1, at).at(at.h, at.w);
    y[at.y] = from.at(place / from.size[1], place % from.size[1]);
  }
}

// Planes: x, twice.
template <class T>
__global__ void __launch_bounds__(kThreads) average_kernel(const T* x, T* y, Planes p, Windows q) {
  using C = Wide<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) {
    const auto at = p.locate(i);
    const Plane<const T> from = p.plane(x, 0, at);
    C sum = 0;
    for_each_tap(from, at.h, at.w, q,
                 [&](int64_t h, int64_t w) { sum += static_cast<C>(from.at(h, w)); });
    y[at.y] = static_cast<T>(sum / divisor_of<C>(at.h, at.w, from, q));
  }
}

// Planes: g, gx.
template <class T>
__global__ void __launch_bounds__(kThreads, cuda::kBlocks)
    average_backward_kernel(const T* g, T* gx, Planes p, Windows q) {
  using C = Wide<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) {
    const auto at = p.locate(i);
    const Plane<const T> from = p.plane(g, 0, at);
    const Plane<T> to = p.plane(gx, 1, at);
    const Reach rows = windows_at(at.h, from.size[0], q, 0);
    const Reach columns = windows_at(at.w, from.size[1], q, 1);
    C sum = 0;
    for (int64_t oh = rows.first; oh < rows.end; ++oh) {
      for (int64_t ow = columns.first; ow < columns.end; ++ow) {
        sum += static_cast<C>(from.at(oh, ow)) / divisor_of<C>(oh, ow, to, q);
      }
    }
    gx[at.y] = static_cast<T>(sum);
  }
}

// Launches kernel(arguments...) with a thread for each element of y.
template <class... Parameters, class... Arguments>
void run(const View& y, void (*kernel)(Parameters...), const Arguments&... arguments) {
  cuda::launch_kernel(cuda::grid_for(y.numel()), dim3(kThreads), kernel, arguments...);
}

}  // namespace

void MaxPool2d::cuda(const View& x, const View& y, const View& places, const Pool2dParams& params) {
  check_max_pool2d(x, y, params);
  if (y.numel() == 0) return;
  const Planes p = make_planes(y, x, places, "max_pool2d");
  visit_floating(x.dtype, "max_pool2d", [&](auto tag) {
    using T = typename decltype(tag)::type;
    run(y, max_kernel<T>, x.as<T>(), y.as<T>(), places.as<int32_t>(), p, windows_of(params, true));
  });
}

void MaxPool2dBackward::cuda(const View& g, const View& places, const View& gx,
                             const Pool2dParams& params) {
  if (gx.numel() == 0) return;
  const Planes p = make_planes(gx, g, places, "max_pool2d_backward");
  visit_floating(g.dtype, "max_pool2d_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    run(gx, max_backward_kernel<T>, g.as<T>(), places.as<int32_t>(), gx.as<T>(), p,
        windows_of(params, true), gx.shape[3]);
  });
}

void MaxPool2dGather::cuda(const View& x, const View& places, const View& y) {
  if (y.numel() == 0) return;
  const int64_t height = x.shape[2], width = x.shape[3];
  cuda::check_places<int32_t>(
      places, height * width, "max_pool2d_gather", [&](int64_t, int64_t place) {
        return str_cat("want places in [0, ", height * width, "), within a plane of ", height,
                       " by ", width, ", got ", place);
      });
  const Planes p = make_planes(y, x, places, "max_pool2d_gather");
  visit_floating(x.dtype, "max_pool2d_gather", [&](auto tag) {
    using T = typename decltype(tag)::type;
    run(y, max_gather_kernel<T>, x.as<T>(), places.as<int32_t>(), y.as<T>(), p);
  });
}

void AvgPool2d::cuda(const View& x, const View& y, const Pool2dParams& params) {
  if (y.numel() == 0) return;
  const Planes p = make_planes(y, x, x, "avg_pool2d");
  visit_floating(x.dtype, "avg_pool2d", [&](auto tag) {
    using T = typename decltype(tag)::type;
    run(y, average_kernel<T>, x.as<T>(), y.as<T>(), p, windows_of(params, false));
  });
}

void AvgPool2dBackward::cuda(const View& g, const View& gx, const Pool2dParams& params) {
  if (gx.numel() == 0) return;
  const Planes p = make_planes(gx, g, gx, "avg_pool2d_backward");
  visit_floating(g.dtype, "avg_pool2d_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    run(gx, average_backward_kernel<T>, g.as<T>(), gx.as<T>(), p, windows_of(params, false));
  });
}

}  // namespace lockstep::kernels
