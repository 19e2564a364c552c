// The places of extreme values: of equals the first.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cpu/reduce_plan.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/reduce.h"
#include "lockstep/kernels/simd.h"

namespace lockstep::kernels {
namespace {

// Elements that are searched as one: vectors find out whether one of them beats what came before,
// and only then a part of them, and one by one, is looked at.
constexpr int64_t kRun = 512;
constexpr int64_t kPart = 64;

// Results side by side that are taken together: see reduce.cpp.
constexpr int64_t kColumns = 1024;

template <class T>
LOCKSTEP_INLINE bool is_nan(T x) {
  return x != x;
}

struct Larger {
  template <class T>
  static LOCKSTEP_INLINE bool better(T a, T b) {
    return a > b;
  }
  template <class T>
  static LOCKSTEP_INLINE bool not_better(T a, T b) {  // false for NaN
    return a <= b;
  }
};

struct Smaller {
  template <class T>
  static LOCKSTEP_INLINE bool better(T a, T b) {
    return a < b;
  }
  template <class T>
  static LOCKSTEP_INLINE bool not_better(T a, T b) {
    return a >= b;
  }
};

template <class Order, class T>
struct Best {
  T value;
  int64_t place = 0;

  // Once a NaN is found it stays; of equals the first one.
  void look_at(T candidate, int64_t at) {
    if (!Order::not_better(candidate, value) && !is_nan(value)) {
      value = candidate;
      place = at;
    }
  }
};

// Whether any of n contiguous elements beats `value`, which is no NaN, or is NaN.
template <class Order, class T>
bool any_better(const T* x, int64_t n, T value) {
  int64_t worse = 0;
  simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
    const T* from = x;
    const int64_t size = n;
    const T limit = value;
    int count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < size; ++i) count += Order::not_better(from[i], limit) ? 1 : 0;
    worse = count;
  });
  return worse != n;
}

// The place of the first element that no other one beats, or of the first NaN, among elements
// `first` and on of a walk.
template <class Order, class T>
void search_run(const T* run, int64_t stride, int64_t length, int64_t first, Best<Order, T>& best) {
  if (stride != 1) {
    for (int64_t k = 0; k < length; ++k) best.look_at(run[k * stride], first + k);
    return;
  }
  for (int64_t from = 0; from < length; from += kRun) {
    const int64_t end = std::min(from + kRun, length);
    if (is_nan(best.value)) return;
    if (!any_better<Order, T>(run + from, end - from, best.value)) continue;
    for (int64_t part = from; part < end && !is_nan(best.value); part += kPart) {
      const int64_t n = std::min(kPart, end - part);
      if (!any_better<Order, T>(run + part, n, best.value)) continue;
      for (int64_t k = part; k < part + n; ++k) best.look_at(run[k], first + k);
    }
  }
}

// `width` results side by side, each from a column of `rows` elements at a stride.
template <class Order, class T>
void search_columns(const T* x, int64_t stride, int64_t rows, int64_t width, int64_t* places) {
  // Places as wide as the elements, so that both go through vectors of one length.
  using Place = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  alignas(64) T best[kColumns];
  alignas(64) Place place[kColumns];
  std::copy_n(x, width, best);
  std::fill_n(place, width, Place{0});
  simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
    T* values = best;
    Place* at = place;
    const int64_t n = width;
    // `count` rows for one pass over the results. NaNs are told from the loads: asked of a choice,
    // the compiler makes it a choice of flags, and no vectors.
    const auto take_rows = [=](int64_t r, auto count) LOCKSTEP_INLINE_LAMBDA {
      const T* row = x + r * stride;
      const auto here = static_cast<Place>(r);
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        T value = values[j];
        Place found = at[j];
        bool nan = is_nan(values[j]);
        for (Place k = 0; k < count; ++k) {
          const T candidate = row[k * stride + j];
          const bool new_nan = is_nan(candidate);
          const bool take = Order::better(candidate, value) | (new_nan & !nan);
          value = take ? candidate : value;
          found = take ? here + k : found;
          nan |= new_nan;
        }
        values[j] = value;
        at[j] = found;
      }
    };
    int64_t r = 1;
    for (; r + 4 <= rows; r += 4) take_rows(r, std::integral_constant<int, 4>());
    for (; r < rows; ++r) take_rows(r, std::integral_constant<int, 1>());
  });
  std::copy_n(place, width, places);
}

template <class Order, class T>
void arg_lanes(const View& x_view, const View& y_view) {
  const T* x = static_cast<const T*>(x_view.data);
  int64_t* y = y_view.as<int64_t>();
  const ReducePlan p = reduce_plan(x_view, y_view);
  Shape row_major;
  for (size_t d = 0; d < x_view.shape.size(); ++d) {
    if (y_view.shape[d] == 1 && x_view.shape[d] != 1) row_major.push_back(static_cast<int64_t>(d));
  }
  const Walk gone(x_view, row_major);
  const bool across = !p.kept.empty() && p.kept_x.back() == 1 && gone.shape.size() == 1 &&
                      gone.inner_stride() != 1 && p.gone_count <= INT32_MAX;
  const int64_t inner = across ? p.kept.back() : 1;
  const int64_t widest = stripe_width(p.kept_count, num_threads(), kColumns);
  const int64_t stripes = (inner + widest - 1) / widest;
  const int64_t jobs = p.kept_count / inner * stripes;
  const int64_t grain =
      std::max<int64_t>(1, kReduceGrain / (p.gone_count * std::min(inner, widest)));
  parallel_for(jobs, grain, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const int64_t first = job % stripes * widest;
      const Offsets at = locate(p, job / stripes, across);
      if (across) {
        int64_t places[kColumns];
        const int64_t width = std::min(widest, inner - first);
        search_columns<Order, T>(x + at.x + first, gone.inner_stride(), p.gone_count, width,
                                 places);
        int64_t* to = y + at.y + first * p.kept_y.back();
        for (int64_t i = 0; i < width; ++i) to[i * p.kept_y.back()] = places[i];
        continue;
      }
      Best<Order, T> best{x[at.x]};
      int64_t next = 0;
      for_each_run(gone, 0, p.gone_count, [&](int64_t offset, int64_t length) {
        search_run<Order, T>(x + at.x + offset, gone.inner_stride(), length, next, best);
        next += length;
      });
      y[at.y] = best.place;
    }
  });
}

template <class Order>
void arg_extreme(const View& x, const View& y, std::string_view op) {
  if (!check_some(x, y, op)) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (is_reduced_float_v<T>) {
      const Wide from(x);
      Copy::cpu(x, from.view);
      arg_lanes<Order, float>(from.view, y);
    } else {
      using Bits = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
      arg_lanes<Order, Bits>(x, y);
    }
  });
}

}  // namespace

void ArgMax::cpu(const View& x, const View& y) { arg_extreme<Larger>(x, y, "argmax"); }
void ArgMin::cpu(const View& x, const View& y) { arg_extreme<Smaller>(x, y, "argmin"); }

}  // namespace lockstep::kernels
