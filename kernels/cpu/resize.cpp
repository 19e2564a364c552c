#include "lockstep/kernels/resize.h"

#include <algorithm>

#include "lockstep/kernels/cpu/staged.h"
#include "lockstep/kernels/parallel.h"

// Memory is row-major, (before, the axis, after): rows of `after` elements are added as vectors.
// Where the axis is the last one, elements are looked up one by one.
namespace lockstep::kernels {
namespace {

constexpr int64_t kGrain = 32768;  // elements that are worth a thread

// The shares in the type that is computed in, and the sizes of both views.
template <class T>
struct Plan {
  Plan(const View& old_size, const View& new_size, int64_t axis, const Interpolation& how)
      : low(how.low.data()), high(how.high.data()) {
    const auto d = static_cast<size_t>(axis);
    for (size_t k = 0; k < d; ++k) before *= old_size.shape[k];
    for (size_t k = d + 1; k < old_size.shape.size(); ++k) after *= old_size.shape[k];
    from = old_size.shape[d];
    to = new_size.shape[d];
    for (double weight : how.weight) {
      of_high.push_back(static_cast<T>(weight));
      of_low.push_back(T{1} - of_high.back());
    }
  }

  // Runs f(first element of the old, first element of the new) for each of `before`.
  template <class F>
  void for_each_slice(const F& f) const {
    const int64_t size = std::max<int64_t>(1, std::max(from, to) * after);
    parallel_for(before, std::max<int64_t>(1, kGrain / size), [&](int64_t begin, int64_t end) {
      simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
        for (int64_t b = begin; b < end; ++b) f(b * from * after, b * to * after);
      });
    });
  }

  int64_t before = 1;
  int64_t from = 0;
  int64_t to = 0;
  int64_t after = 1;
  const int64_t* low;
  const int64_t* high;
  std::vector<T> of_low;
  std::vector<T> of_high;
};

template <class T>
void interpolate(const Plan<T>& p, const T* x, T* y) {
  p.for_each_slice([&p, x, y, low = p.low, high = p.high, of_low = p.of_low.data(),
                    of_high = p.of_high.data()](int64_t at_x, int64_t at_y) LOCKSTEP_INLINE_LAMBDA {
    const T* xs = x + at_x;
    T* ys = y + at_y;
    const int64_t after = p.after;
    const int64_t to = p.to;
    if (after == 1) {
      for (int64_t i = 0; i < to; ++i) ys[i] = xs[low[i]] * of_low[i] + xs[high[i]] * of_high[i];
      return;
    }
    for (int64_t i = 0; i < to; ++i) {
      const T* a = xs + low[i] * after;
      const T* b = xs + high[i] * after;
      T* row = ys + i * after;
      const T share_a = of_low[i];
      const T share_b = of_high[i];
#pragma omp simd
      for (int64_t k = 0; k < after; ++k) row[k] = a[k] * share_a + b[k] * share_b;
    }
  });
}

template <class T>
void interpolate_backward(const Plan<T>& p, const T* g, T* gx) {
  p.for_each_slice([&p, g, gx](int64_t at_gx, int64_t at_g) LOCKSTEP_INLINE_LAMBDA {
    const int64_t after = p.after;
    std::fill_n(gx + at_gx, p.from * after, T{0});
    for (int64_t i = 0; i < p.to; ++i) {
      const T* row = g + at_g + i * after;
      T* a = gx + at_gx + p.low[i] * after;
      T* b = gx + at_gx + p.high[i] * after;  // may be a
      const T share_a = p.of_low[static_cast<size_t>(i)];
      const T share_b = p.of_high[static_cast<size_t>(i)];
#pragma omp simd
      for (int64_t k = 0; k < after; ++k) a[k] += row[k] * share_a;
#pragma omp simd
      for (int64_t k = 0; k < after; ++k) b[k] += row[k] * share_b;
    }
  });
}

// Calls f(elements read, elements written), of float or double in row-major order.
template <class F>
void run(const View& from, const View& to, const F& f) {
  if (to.numel() == 0) return;
  visit_lane(to.dtype, "interpolate", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const StagedInput read(from, contiguous_strides(from.shape));
    const StagedOutput written(to, contiguous_strides(to.shape));
    f(read.as<T>(), written.as<T>());
    written.finish();
  });
}

}  // namespace

void Interpolate::cpu(const View& x, const View& y, int64_t axis, const Interpolation& how) {
  run(x, y, [&]<class T>(const T* in, T* out) { interpolate(Plan<T>(x, y, axis, how), in, out); });
}

void InterpolateBackward::cpu(const View& g, const View& gx, int64_t axis,
                              const Interpolation& how) {
  run(g, gx, [&]<class T>(const T* in, T* out) {
    interpolate_backward(Plan<T>(gx, g, axis, how), in, out);
  });
}

}  // namespace lockstep::kernels
