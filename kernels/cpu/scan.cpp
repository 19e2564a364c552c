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
    lines.for_each([&](int64_t line) {
      const T* from = x.as<T>() + lines.offset(x.strides, line);
      R* to = y.as<R>() + lines.offset(y.strides, line);
      S sum = 0;
      for (int64_t k = 0; k <= last; ++k) {
        const int64_t i = reverse ? last - k : k;
        sum = added(sum, static_cast<S>(static_cast<Lane<T>>(from[i * x.strides[d]])));
        to[i * y.strides[d]] = static_cast<R>(sum);
      }
    });
  });
}

}  // namespace lockstep::kernels
