// The places of extreme values: of equals the first.

#include <algorithm>
#include <cstdint>
#include <functional>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cpu/reduce_plan.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/reduce.h"
#include "lockstep/kernels/simd.h"

namespace lockstep::kernels {
namespace {

// Elements that are searched as one: their extreme value is found by vectors, its place only where
// it beats what came before.
constexpr int64_t kRun = 512;

// Results side by side that are taken together.
constexpr int64_t kColumns = 256;

template <class Better, class T>
struct Best {
  T value;
  int64_t place = 0;

  // Once a NaN is found it stays; of equals the first one.
  void look_at(T candidate, int64_t at) {
    if ((Better()(candidate, value) || candidate != candidate) && value == value) {
      value = candidate;
      place = at;
    }
  }
};

// Whether any of n contiguous elements beats `value` or is NaN.
template <class Better, class T>
bool any_better(const T* x, int64_t n, T value) {
  bool found = false;
  simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
    const T limit = value;
    int count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < n; ++i) count += Better()(x[i], limit) | (x[i] != x[i]);
    found = count != 0;
  });
  return found;
}

// The place of the first element that no other one beats, or of the first NaN, among elements
// `first` and on of a walk.
template <class Better, class T>
void search_run(const T* run, int64_t stride, int64_t length, int64_t first,
                Best<Better, T>& best) {
  if (stride != 1) {
    for (int64_t k = 0; k < length; ++k) best.look_at(run[k * stride], first + k);
    return;
  }
  for (int64_t from = 0; from < length; from += kRun) {
    const int64_t n = std::min(kRun, length - from);
    if (!any_better<Better, T>(run + from, n, best.value)) continue;
    for (int64_t k = from; k < from + n; ++k) best.look_at(run[k], first + k);
  }
}

// `width` results side by side, each from a column of `rows` elements at a stride.
template <class Better, class T>
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
    for (int64_t r = 1; r < rows; ++r) {
      const T* row = x + r * stride;
      const auto here = static_cast<Place>(r);
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        const T candidate = row[j];
        const bool take =
            (Better()(candidate, values[j]) | (candidate != candidate)) & (values[j] == values[j]);
        values[j] = take ? candidate : values[j];
        at[j] = take ? here : at[j];
      }
    }
  });
  std::copy_n(place, width, places);
}

template <class Better, class T>
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
  const int64_t stripes = (inner + kColumns - 1) / kColumns;
  const int64_t jobs = p.kept_count / inner * stripes;
  const int64_t grain =
      std::max<int64_t>(1, kReduceGrain / (p.gone_count * std::min(inner, kColumns)));
  parallel_for(jobs, grain, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const int64_t first = job % stripes * kColumns;
      const Offsets at = locate(p, job / stripes, across);
      if (across) {
        int64_t places[kColumns];
        const int64_t width = std::min(kColumns, inner - first);
        search_columns<Better, T>(x + at.x + first, gone.inner_stride(), p.gone_count, width,
                                  places);
        int64_t* to = y + at.y + first * p.kept_y.back();
        for (int64_t i = 0; i < width; ++i) to[i * p.kept_y.back()] = places[i];
        continue;
      }
      Best<Better, T> best{x[at.x]};
      int64_t next = 0;
      for_each_run(gone, 0, p.gone_count, [&](int64_t offset, int64_t length) {
        search_run<Better, T>(x + at.x + offset, gone.inner_stride(), length, next, best);
        next += length;
      });
      y[at.y] = best.place;
    }
  });
}

template <class Better>
void arg_extreme(const View& x, const View& y, std::string_view op) {
  if (!check_some(x, y, op)) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (is_reduced_float_v<T>) {
      const Wide from(x);
      Copy::cpu(x, from.view);
      arg_lanes<Better, float>(from.view, y);
    } else {
      using Bits = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
      arg_lanes<Better, Bits>(x, y);
    }
  });
}

}  // namespace

void ArgMax::cpu(const View& x, const View& y) { arg_extreme<std::greater<>>(x, y, "argmax"); }
void ArgMin::cpu(const View& x, const View& y) { arg_extreme<std::less<>>(x, y, "argmin"); }

}  // namespace lockstep::kernels
