#include "lockstep/kernels/scan.h"

#include "lockstep/kernels/cpu/added.h"
#include "lockstep/kernels/cpu/lines.h"

namespace lockstep::kernels {
namespace {

template <class T>
using ScanSum = std::conditional_t<std::is_same_v<T, float>, double, Accumulator<T>>;

}  // namespace

void CumSum::cpu(const View& x, const View& y, int64_t axis, bool reverse) {
  const auto d = static_cast<size_t>(axis);
  if (x.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using S = ScanSum<T>;
    using R = std::conditional_t<is_floating_v<T>, T, int64_t>;
    const Lines lines(x.shape, axis);
    const int64_t last = lines.length() - 1;
    const int64_t x_step = x.strides[d], y_step = y.strides[d];
    const int64_t x_beside = lines.beside(x.strides), y_beside = lines.beside(y.strides);
    lines.for_each_strip([&](int64_t line, int64_t count) {
      const T* from = x.as<T>() + lines.offset(x.strides, line);
      R* to = y.as<R>() + lines.offset(y.strides, line);
      S sums[Lines::kStrip] = {};
      for (int64_t k = 0; k <= last; ++k) {
        const int64_t i = reverse ? last - k : k;
        const T* row = from + i * x_step;
        R* out = to + i * y_step;
        for (int64_t j = 0; j < count; ++j) {
          sums[j] = added(sums[j], static_cast<S>(static_cast<Lane<T>>(row[j * x_beside])));
          out[j * y_beside] = static_cast<R>(sums[j]);
        }
      }
    });
  });
}

}  // namespace lockstep::kernels
