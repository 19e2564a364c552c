// The places of extreme values: one element after the other, since the first of equals is wanted.

#include <algorithm>
#include <functional>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cpu/reduce_plan.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::kernels {
namespace {

// The place of the first element that no other one beats, or of the first NaN.
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
  parallel_for(p.kept_count, std::max<int64_t>(1, kReduceGrain / p.gone_count),
               [&](int64_t first, int64_t last) {
                 for (int64_t i = first; i < last; ++i) {
                   const Offsets at = locate(p, i, false);
                   T best = x[at.x];
                   int64_t place = 0;
                   int64_t next = 0;
                   for_each_run(gone, 0, p.gone_count, [&](int64_t offset, int64_t length) {
                     const T* run = x + at.x + offset;
                     for (int64_t k = 0; k < length; ++k, ++next) {
                       const T value = run[k * gone.inner_stride()];
                       if ((Better()(value, best) || value != value) && best == best) {
                         best = value;
                         place = next;
                       }
                     }
                   });
                   y[at.y] = place;
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
      arg_lanes<Better, T>(x, y);
    }
  });
}

}  // namespace

void ArgMax::cpu(const View& x, const View& y) { arg_extreme<std::greater<>>(x, y, "argmax"); }
void ArgMin::cpu(const View& x, const View& y) { arg_extreme<std::less<>>(x, y, "argmin"); }

}  // namespace lockstep::kernels
