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
// and only then which, and where: a part at a time.
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

// Whether one of n contiguous elements beats `value`, which is no NaN, or is NaN.
template <class Order, class T>
LOCKSTEP_INLINE bool any_better(const T* x, int64_t n, T value) {
  int count = 0;
#pragma omp simd reduction(+ : count)
  for (int64_t i = 0; i < n; ++i) count += Order::not_better(x[i], value) ? 1 : 0;
  return count != n;
}

template <class T>
LOCKSTEP_INLINE bool any_nan(const T* x, int64_t n) {
  int count = 0;
#pragma omp simd reduction(+ : count)
  for (int64_t i = 0; i < n; ++i) count += is_nan(x[i]) ? 1 : 0;
  return count != 0;
}

// The best of n contiguous elements that are no NaN, and of `value`.
template <class Order, class T>
LOCKSTEP_INLINE T best_of(const T* x, int64_t n, T value) {
  constexpr int64_t kLanes = 4 * 64 / static_cast<int64_t>(sizeof(T));
  T lanes[kLanes];
  for (int64_t k = 0; k < kLanes; ++k) lanes[k] = value;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int64_t k = 0; k < kLanes; ++k) {
      lanes[k] = Order::better(x[i + k], lanes[k]) ? x[i + k] : lanes[k];
    }
  }
  for (; i < n; ++i) value = Order::better(x[i], value) ? x[i] : value;
  for (int64_t k = 0; k < kLanes; ++k) value = Order::better(lanes[k], value) ? lanes[k] : value;
  return value;
}

// The first of n contiguous elements for which is_it() holds; there is one.
template <class T, class F>
LOCKSTEP_INLINE int64_t first_of(const T* x, int64_t n, const F& is_it) {
  int64_t first = 0;
  for (; first + kPart <= n; first += kPart) {
    int found = 0;
#pragma omp simd reduction(+ : found)
    for (int64_t k = 0; k < kPart; ++k) found += is_it(x[first + k]) ? 1 : 0;
    if (found != 0) break;
  }
  while (!is_it(x[first])) ++first;
  return first;
}

// The place of the first element that no other one beats, or of the first NaN, among elements
// `first` and on of a walk.
template <class Order, class T>
void search_run(const T* run, int64_t stride, int64_t length, int64_t first, Best<Order, T>& best) {
  if (stride != 1) {
    for (int64_t k = 0; k < length; ++k) best.look_at(run[k * stride], first + k);
    return;
  }
  simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
    for (int64_t from = 0; from < length && !is_nan(best.value); from += kRun) {
      const T* x = run + from;
      const int64_t n = std::min(kRun, length - from);
      if (!any_better<Order, T>(x, n, best.value)) continue;
      const T found = best_of<Order, T>(x, n, best.value);
      const auto is_nan_here = [](T e) LOCKSTEP_INLINE_LAMBDA { return is_nan(e); };
      const auto is_found = [=](T e) LOCKSTEP_INLINE_LAMBDA { return e == found; };
      const bool nan = std::is_floating_point_v<T> && any_nan(x, n);
      const int64_t at = nan ? first_of(x, n, is_nan_here) : first_of(x, n, is_found);
      best.value = x[at];
      best.place = first + from + at;
    }
  });
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
