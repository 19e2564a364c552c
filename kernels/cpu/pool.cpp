#include "lockstep/kernels/pool.h"

#include <algorithm>
#include <limits>

#include "lockstep/kernels/cpu/staged.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/text.h"

// Windows are taken in channels-last memory, tap by tap, all channels of a pixel at once; planes in
// row-major order are brought to it first. Going by places needs no vectors, and does with either.
namespace lockstep::kernels {
namespace {

constexpr int64_t kGrain = 32768;  // elements that are worth a thread

// What x (N, C, H, W) and y (N, C, H', W') have in common.
struct Planes {
  Planes(const View& x, const View& y, bool last)
      : samples(x.shape[0]),
        channels(x.shape[1]),
        height(x.shape[2]),
        width(x.shape[3]),
        out_height(y.shape[2]),
        out_width(y.shape[3]),
        channels_last(last),
        x_strides(last ? channels_last_strides(x.shape) : contiguous_strides(x.shape)),
        y_strides(last ? channels_last_strides(y.shape) : contiguous_strides(y.shape)) {}

  int64_t plane() const { return height * width; }
  int64_t out_plane() const { return out_height * out_width; }
  int64_t x_sample() const { return channels * plane(); }
  int64_t y_sample() const { return channels * out_plane(); }

  int64_t samples;
  int64_t channels;
  int64_t height;
  int64_t width;
  int64_t out_height;
  int64_t out_width;
  bool channels_last;
  Strides x_strides;
  Strides y_strides;
};

// Runs f(n) for every sample, on several threads when there is much to do.
template <class F>
void for_each_sample(const Planes& p, const F& f) {
  const int64_t size = std::max<int64_t>(1, std::max(p.x_sample(), p.y_sample()));
  parallel_for(p.samples, std::max<int64_t>(1, kGrain / size), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) f(n);
  });
}

// Calls f(x, y, place) for every tap of every window of one sample: the channels from y on meet
// those from x on, which stand at `place` of their plane; x and y count from the sample's first
// element. Each output meets its taps row by row, as the first of equal maxima needs it.
template <class F>
LOCKSTEP_INLINE void for_each_tap(const Planes& p, const Pool2dParams& q, const F& f) {
  for (int64_t oh = 0; oh < p.out_height; ++oh) {
    for (int64_t ow = 0; ow < p.out_width; ++ow) {
      const int64_t y = (oh * p.out_width + ow) * p.channels;
      for (int64_t kh = 0; kh < q.kernel[0]; ++kh) {
        const int64_t h = oh * q.stride[0] - q.padding[0] + kh * q.dilation[0];
        if (h < 0 || h >= p.height) continue;
        for (int64_t kw = 0; kw < q.kernel[1]; ++kw) {
          const int64_t w = ow * q.stride[1] - q.padding[1] + kw * q.dilation[1];
          if (w < 0 || w >= p.width) continue;
          const int64_t place = h * p.width + w;
          f(place * p.channels, y, place);
        }
      }
    }
  }
}

// Throws where a window sees nothing but padding: it has no maximum.
void check_windows(const Planes& p, const Pool2dParams& q) {
  const std::array<int64_t, 2> sizes = {p.height, p.width};
  const std::array<int64_t, 2> outputs = {p.out_height, p.out_width};
  for (size_t axis : {0, 1}) {
    for (int64_t o = 0; o < outputs[axis]; ++o) {
      int64_t first = o * q.stride[axis] - q.padding[axis];
      if (first < 0) first += (-first - 1) / q.dilation[axis] * q.dilation[axis] + q.dilation[axis];
      check(first < sizes[axis], "max_pool2d", [&] {
        return str_cat("want windows that see more than padding, got window ", o, " of dimension ",
                       axis + 2, " with kernel ", q.kernel[axis], ", padding ", q.padding[axis],
                       ", dilation ", q.dilation[axis], " over ", sizes[axis],
                       " elements; use less padding or dilation");
      });
    }
  }
}

// Whether v takes the place of the best so far: it is larger, or the first NaN.
template <class T>
LOCKSTEP_INLINE bool beats(T v, T best) {
  return !(v <= best) & (best == best);
}

template <class T>
void max_sample(const Planes& p, const Pool2dParams& q, const T* x, T* y, int32_t* places) {
  simd_dispatch([=, &p, &q]() LOCKSTEP_INLINE_LAMBDA {
    const int64_t channels = p.channels;
    std::fill_n(y, p.y_sample(), -std::numeric_limits<T>::infinity());
    std::fill_n(places, p.y_sample(), -1);
    for_each_tap(p, q, [=](int64_t from, int64_t to, int64_t tap) LOCKSTEP_INLINE_LAMBDA {
      const T* v = x + from;
      T* best = y + to;
      int32_t* at = places + to;
      const auto place = static_cast<int32_t>(tap);
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        const T value = v[c];
        const T old = best[c];
        const bool take = beats(value, old) | (at[c] < 0);
        best[c] = take ? value : old;
        at[c] = take ? place : at[c];
      }
    });
  });
}

// Windows of 2 by 2 without padding: all four taps in one pass.
template <class T>
void max_sample_of_four(const Planes& p, const Pool2dParams& q, const T* x, T* y, int32_t* places) {
  simd_dispatch([=, &p, &q]() LOCKSTEP_INLINE_LAMBDA {
    const int64_t channels = p.channels;
    const auto right = static_cast<int32_t>(q.dilation[1]);
    const auto down = static_cast<int32_t>(q.dilation[0] * p.width);
    for (int64_t oh = 0; oh < p.out_height; ++oh) {
      for (int64_t ow = 0; ow < p.out_width; ++ow) {
        const auto place = static_cast<int32_t>(oh * q.stride[0] * p.width + ow * q.stride[1]);
        const T* a = x + place * channels;
        const T* b = a + right * channels;
        const T* c = a + down * channels;
        const T* d = c + right * channels;
        T* out = y + (oh * p.out_width + ow) * channels;
        int32_t* at = places + (oh * p.out_width + ow) * channels;
#pragma omp simd
        for (int64_t i = 0; i < channels; ++i) {
          const T va = a[i];
          const T vb = b[i];
          const T vc = c[i];
          const T vd = d[i];
          // NaNs are told from the loads: asked of a choice, the compiler makes it a choice of
          // flags, and no vectors.
          const bool nan_a = va != va;
          const bool nan_c = vc != vc;
          const bool nan_upper = nan_a | (vb != vb);
          const bool nan_lower = nan_c | (vd != vd);
          const bool take_b = (vb > va) | (nan_upper & !nan_a);
          const T upper = take_b ? vb : va;
          const int32_t upper_at = take_b ? place + right : place;
          const bool take_d = (vd > vc) | (nan_lower & !nan_c);
          const T lower = take_d ? vd : vc;
          const int32_t lower_at = take_d ? place + down + right : place + down;
          const bool take_lower = (lower > upper) | (nan_lower & !nan_upper);
          out[i] = take_lower ? lower : upper;
          at[i] = take_lower ? lower_at : upper_at;
        }
      }
    }
  });
}

// Throws unless all places are within the planes of x.
void check_places(std::string_view op, const Planes& p, const int32_t* places) {
  const int64_t n = p.samples * p.y_sample();
  const auto limit = static_cast<uint32_t>(
      std::min<int64_t>(p.plane(), int64_t{std::numeric_limits<int32_t>::max()} + 1));
  int32_t outside = 0;
  simd_dispatch([=, &outside]() LOCKSTEP_INLINE_LAMBDA {
    int32_t any = 0;
#pragma omp simd reduction(| : any)
    for (int64_t i = 0; i < n; ++i) any |= static_cast<uint32_t>(places[i]) >= limit ? 1 : 0;
    outside = any;
  });
  if (outside == 0) [[likely]]
    return;
  const int32_t* bad = std::find_if(
      places, places + n, [&](int32_t place) { return static_cast<uint32_t>(place) >= limit; });
  throw Error(ErrorCode::kInvalidArgument, op,
              str_cat("want places in [0, ", p.plane(), "), within a plane of ", p.height, " by ",
                      p.width, ", got ", *bad));
}

// Calls f(x, y) for each output of one sample: where it is, and where in x its place is.
template <class F>
LOCKSTEP_INLINE void for_each_place(const Planes& p, const int32_t* places, const F& f) {
  if (p.channels_last) {
    for (int64_t i = 0; i < p.out_plane(); ++i) {
      for (int64_t c = 0; c < p.channels; ++c) {
        const int64_t y = i * p.channels + c;
        f(places[y] * p.channels + c, y);
      }
    }
    return;
  }
  for (int64_t c = 0; c < p.channels; ++c) {
    for (int64_t i = 0; i < p.out_plane(); ++i) {
      const int64_t y = c * p.out_plane() + i;
      f(c * p.plane() + places[y], y);
    }
  }
}

// How many elements of x the window of each output covers in one dimension.
int64_t covered(int64_t o, size_t axis, const Pool2dParams& q, int64_t size) {
  const int64_t begin = o * q.stride[axis] - q.padding[axis];
  return std::min(begin + q.kernel[axis], size) - std::max<int64_t>(begin, 0);
}

// Divides each element of one sample of y by the size of its window; from may be y.
template <class T>
void divide_by_windows(const Planes& p, const Pool2dParams& q, const T* from, T* y) {
  for (int64_t oh = 0; oh < p.out_height; ++oh) {
    for (int64_t ow = 0; ow < p.out_width; ++ow) {
      const int64_t count = q.count_include_pad
                                ? q.kernel[0] * q.kernel[1]
                                : covered(oh, 0, q, p.height) * covered(ow, 1, q, p.width);
      const T divisor = static_cast<T>(count);
      const int64_t at = (oh * p.out_width + ow) * p.channels;
#pragma omp simd
      for (int64_t i = at; i < at + p.channels; ++i) y[i] = from[i] / divisor;
    }
  }
}

template <class T>
void avg_sample(const Planes& p, const Pool2dParams& q, const T* x, T* y) {
  simd_dispatch([=, &p, &q]() LOCKSTEP_INLINE_LAMBDA {
    const int64_t channels = p.channels;
    std::fill_n(y, p.y_sample(), T{0});
    for_each_tap(p, q, [=](int64_t from, int64_t to, int64_t) LOCKSTEP_INLINE_LAMBDA {
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) y[to + c] += x[from + c];
    });
  });
  divide_by_windows(p, q, y, y);
}

// `shares` (of y's sample) holds g divided by the windows.
template <class T>
void avg_sample_backward(const Planes& p, const Pool2dParams& q, const T* shares, T* gx) {
  simd_dispatch([=, &p, &q]() LOCKSTEP_INLINE_LAMBDA {
    const int64_t channels = p.channels;
    std::fill_n(gx, p.x_sample(), T{0});
    for_each_tap(p, q, [=](int64_t to, int64_t from, int64_t) LOCKSTEP_INLINE_LAMBDA {
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) gx[to + c] += shares[from + c];
    });
  });
}

// The average's windows are not dilated.
Pool2dParams undilated(Pool2dParams params) {
  params.dilation = {1, 1};
  return params;
}

}  // namespace

void check_max_pool2d(const View& x, const View& y, const Pool2dParams& params) {
  const Planes p(x, y, true);
  check(p.plane() <= std::numeric_limits<int32_t>::max(), "max_pool2d", [&] {
    return str_cat("want planes of fewer than 2^31 elements, got ", p.height, " by ", p.width);
  });
  if (y.numel() > 0) check_windows(p, params);
}

void MaxPool2d::cpu(const View& x, const View& y, const View& places, const Pool2dParams& params) {
  check_max_pool2d(x, y, params);
  if (y.numel() == 0) return;
  const Planes p(x, y, true);
  visit_lane(x.dtype, "max_pool2d", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const StagedInput from(x, p.x_strides);
    const StagedOutput to(y, p.y_strides);
    const StagedOutput at(places, p.y_strides);
    const bool of_four = params.kernel == std::array<int64_t, 2>{2, 2} &&
                         params.padding == std::array<int64_t, 2>{0, 0};
    for_each_sample(p, [&](int64_t n) {
      const T* xs = from.as<T>() + n * p.x_sample();
      T* ys = to.as<T>() + n * p.y_sample();
      int32_t* ps = at.as<int32_t>() + n * p.y_sample();
      of_four ? max_sample_of_four(p, params, xs, ys, ps) : max_sample(p, params, xs, ys, ps);
    });
    to.finish();
    at.finish();
  });
}

void MaxPool2dBackward::cpu(const View& g, const View& places, const View& gx,
                            const Pool2dParams&) {
  if (gx.numel() == 0) return;
  const Planes p(gx, g, places.is_channels_last() && !places.is_contiguous());
  const StagedInput at(places, p.y_strides);
  check_places("max_pool2d_backward", p, at.as<int32_t>());
  visit_lane(g.dtype, "max_pool2d_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const StagedInput from(g, p.y_strides);
    const StagedOutput to(gx, p.x_strides);
    for_each_sample(p, [&](int64_t n) {
      const T* gs = from.as<T>() + n * p.y_sample();
      T* out = to.as<T>() + n * p.x_sample();
      std::fill_n(out, p.x_sample(), T{0});
      for_each_place(p, at.as<int32_t>() + n * p.y_sample(),
                     [=](int64_t i, int64_t o) LOCKSTEP_INLINE_LAMBDA { out[i] += gs[o]; });
    });
    to.finish();
  });
}

void MaxPool2dGather::cpu(const View& x, const View& places, const View& y) {
  if (y.numel() == 0) return;
  const Planes p(x, y, places.is_channels_last() && !places.is_contiguous());
  const StagedInput at(places, p.y_strides);
  check_places("max_pool2d_gather", p, at.as<int32_t>());
  visit_lane(x.dtype, "max_pool2d_gather", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const StagedInput from(x, p.x_strides);
    const StagedOutput to(y, p.y_strides);
    for_each_sample(p, [&](int64_t n) {
      const T* xs = from.as<T>() + n * p.x_sample();
      T* out = to.as<T>() + n * p.y_sample();
      for_each_place(p, at.as<int32_t>() + n * p.y_sample(),
                     [=](int64_t i, int64_t o) LOCKSTEP_INLINE_LAMBDA { out[o] = xs[i]; });
    });
    to.finish();
  });
}

void AvgPool2d::cpu(const View& x, const View& y, const Pool2dParams& params) {
  if (y.numel() == 0) return;
  const Planes p(x, y, true);
  const Pool2dParams q = undilated(params);
  visit_lane(x.dtype, "avg_pool2d", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const StagedInput from(x, p.x_strides);
    const StagedOutput to(y, p.y_strides);
    for_each_sample(p, [&](int64_t n) {
      avg_sample(p, q, from.as<T>() + n * p.x_sample(), to.as<T>() + n * p.y_sample());
    });
    to.finish();
  });
}

void AvgPool2dBackward::cpu(const View& g, const View& gx, const Pool2dParams& params) {
  if (gx.numel() == 0) return;
  const Planes p(gx, g, true);
  const Pool2dParams q = undilated(params);
  visit_lane(g.dtype, "avg_pool2d_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const StagedInput from(g, p.y_strides);
    const StagedOutput to(gx, p.x_strides);
    const std::shared_ptr<void> memory =
        allocate(static_cast<size_t>(p.samples * p.y_sample()) * sizeof(T));
    T* shares = static_cast<T*>(memory.get());
    for_each_sample(p, [&](int64_t n) {
      T* mine = shares + n * p.y_sample();
      divide_by_windows(p, q, from.as<T>() + n * p.y_sample(), mine);
      avg_sample_backward(p, q, mine, to.as<T>() + n * p.x_sample());
    });
    to.finish();
  });
}

}  // namespace lockstep::kernels
