#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"
#include "lockstep/core/autograd.h"
#include "lockstep/kernels/dtype.h"

namespace lockstep::cli {
namespace {

// The type in which an element is counted.
template <class T>
using Wide = std::conditional_t<is_floating_v<T>, double, int64_t>;

template <class T>
Wide<T> widen(T value) {
  if constexpr (is_reduced_float_v<T>) {
    return static_cast<float>(value);
  } else {
    return static_cast<Wide<T>>(value);
  }
}

template <class T>
Statistics statistics(const T* data, int64_t count) {
  using W = Wide<T>;
  Statistics out;
  W min = std::numeric_limits<W>::max();
  W max = std::numeric_limits<W>::lowest();
  if constexpr (std::is_same_v<W, double>) {
    min = std::numeric_limits<double>::infinity();
    max = -min;
  }
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const W value = widen(data[i]);
    if constexpr (std::is_same_v<W, double>) {
      if (std::isnan(value)) {
        ++out.nans;
        continue;
      }
    }
    min = std::min(min, value);
    max = std::max(max, value);
    sum += static_cast<double>(value);
    ++out.numbers;
  }
  if (out.numbers == 0) return out;
  out.min = min;
  out.max = max;
  out.mean = sum / static_cast<double>(out.numbers);
  return out;
}

template <class T>
Difference difference(const T* a, const T* b, int64_t count, const Tolerance& tolerance) {
  const bool exact = tolerance.atol == 0 && tolerance.rtol == 0;
  Difference out;
  for (int64_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i, b + i, sizeof(T)) == 0) continue;
    const auto x = static_cast<double>(widen(a[i]));
    const auto y = static_cast<double>(widen(b[i]));
    double distance = std::abs(x - y);
    if constexpr (std::is_same_v<T, int64_t>) {
      // Neighbours beyond 2^53 are one number in f64.
      const auto wide = a[i] > b[i] ? static_cast<uint64_t>(a[i]) - static_cast<uint64_t>(b[i])
                                    : static_cast<uint64_t>(b[i]) - static_cast<uint64_t>(a[i]);
      distance = static_cast<double>(wide);
    }
    if (std::isnan(x) && std::isnan(y)) distance = 0;
    if (!exact && distance <= tolerance.atol + tolerance.rtol * std::abs(y)) continue;
    ++out.differing;
    // NaN is more than every number.
    const bool larger =
        distance > out.largest || (std::isnan(distance) && !std::isnan(out.largest));
    if (out.at < 0 || larger) {
      out.largest = distance;
      out.at = i;
    }
    if (y != 0 && distance / std::abs(y) > out.largest_relative) {
      out.largest_relative = distance / std::abs(y);
    }
  }
  return out;
}

}  // namespace

std::string number_text(const Number& number) {
  if (const auto* whole = std::get_if<int64_t>(&number)) return std::to_string(*whole);
  const double value = std::get<double>(number);
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return absl::StrFormat("%.6g", value);
}

Statistics statistics_of(const Tensor& tensor) {
  NoGrad no_grad;
  const Tensor dense = tensor.contiguous();
  return visit_dtype(dense.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return statistics(dense.data<T>(), dense.numel());
  });
}

Difference difference_of(const Tensor& a, const Tensor& b, const Tolerance& tolerance) {
  NoGrad no_grad;
  const Tensor x = a.contiguous();
  const Tensor y = b.contiguous();
  return visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return difference(x.data<T>(), y.data<T>(), x.numel(), tolerance);
  });
}

}  // namespace lockstep::cli
