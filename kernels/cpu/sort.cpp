#include "lockstep/kernels/sort.h"

#include <numeric>

#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/cpu/lines.h"

namespace lockstep::kernels {
namespace {

// NaN is larger than all numbers, and equal to itself.
template <class T>
bool less(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a < b || (b != b && a == a);
  } else {
    return a < b;
  }
}

}  // namespace

void ArgSort::cpu(const View& x, const View& places, int64_t axis, bool descending) {
  const auto d = static_cast<size_t>(axis);
  const int64_t wanted = places.shape[d];
  if (places.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // std::vector<bool> is no array.
    using Key = std::conditional_t<std::is_same_v<T, bool>, uint8_t, Lane<T>>;
    const Lines lines(x.shape, axis);
    const int64_t n = lines.length();
    parallel_for(lines.count(), std::max<int64_t>(1, 2048 / n), [&](int64_t begin, int64_t end) {
      std::vector<Key> keys(static_cast<size_t>(n));
      std::vector<int64_t> order(static_cast<size_t>(n));
      const auto before = [&keys, descending](int64_t i, int64_t j) {
        const Key a = keys[static_cast<size_t>(i)];
        const Key b = keys[static_cast<size_t>(j)];
        if (descending ? less(b, a) : less(a, b)) return true;
        return !(descending ? less(a, b) : less(b, a)) && i < j;
      };
      for (int64_t line = begin; line < end; ++line) {
        const T* from = x.as<T>() + lines.offset(x.strides, line);
        for (int64_t k = 0; k < n; ++k) {
          keys[static_cast<size_t>(k)] = static_cast<Key>(from[k * x.strides[d]]);
        }
        std::iota(order.begin(), order.end(), 0);
        if (wanted == n) {
          std::sort(order.begin(), order.end(), before);
        } else {
          std::partial_sort(order.begin(), order.begin() + wanted, order.end(), before);
        }
        int64_t* to = places.as<int64_t>() + lines.offset(places.strides, line);
        for (int64_t k = 0; k < wanted; ++k)
          to[k * places.strides[d]] = order[static_cast<size_t>(k)];
      }
    });
  });
}

std::vector<int64_t> Nonzero::cpu(const View& x) {
  std::vector<int64_t> places;
  if (x.numel() == 0) return places;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Lines lines(x.shape.empty() ? Shape{1} : x.shape, std::max<int64_t>(x.dim() - 1, 0));
    const int64_t step = x.strides.empty() ? 1 : x.strides.back();
    for (int64_t line = 0; line < lines.count(); ++line) {
      const T* from = x.as<T>() + (x.dim() == 0 ? 0 : lines.offset(x.strides, line));
      for (int64_t k = 0; k < lines.length(); ++k) {
        if (static_cast<Lane<T>>(from[k * step]) != 0) places.push_back(line * lines.length() + k);
      }
    }
  });
  return places;
}

}  // namespace lockstep::kernels
