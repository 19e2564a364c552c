#include "lockstep/kernels/scan.h"

#include <algorithm>

#include "lockstep/kernels/cpu/added.h"
#include "lockstep/kernels/cpu/lines.h"
#include "lockstep/kernels/cpu/past_cache.h"

namespace lockstep::kernels {
namespace {

template <class T>
using ScanSum = std::conditional_t<std::is_same_v<T, float>, double, Accumulator<T>>;

template <class T>
using ScanResult = std::conditional_t<is_floating_v<T>, T, int64_t>;

// One element of a scan, and its sum so far.
template <class T>
LOCKSTEP_INLINE void scan_element(T x, ScanSum<T>& sum, ScanResult<T>& y) {
  sum = added(sum, static_cast<ScanSum<T>>(static_cast<Lane<T>>(x)));
  y = static_cast<ScanResult<T>>(sum);
}

// Lines of a strip at most: long runs of memory, and yet the sums stay in the first-level cache.
constexpr int64_t kWidest = 2048;

// `count` lines that stand side by side in memory, an element of each, and then the next of each.
template <class T>
void scan_strip(const T* x, int64_t x_step, ScanResult<T>* y, int64_t y_step, int64_t length,
                int64_t count, bool past_cache) {
  alignas(64) ScanSum<T> sums[kWidest];
  ScanSum<T>* s = sums;
  std::fill_n(s, count, ScanSum<T>{});
  simd_dispatch([=]() LOCKSTEP_INLINE_LAMBDA {
    for (int64_t k = 0; k < length; ++k) {
      const T* row = x + k * x_step;
      ScanResult<T>* out = y + k * y_step;
      if (past_cache) fetch_later(row + x_step, count);
      store_values(out, count, past_cache, [=](int64_t j) LOCKSTEP_INLINE_LAMBDA {
        ScanResult<T> so_far;
        scan_element(row[j], s[j], so_far);
        return so_far;
      });
    }
  });
  end_past_cache();
}

// Lines that are scanned together: while the sum of one waits for its last addition, the processor
// goes on with the others.
constexpr int64_t kTogether = 4;

template <class T, int64_t kCount>
void scan_lines(const T* const* x, int64_t x_step, ScanResult<T>* const* y, int64_t y_step,
                int64_t length) {
  ScanSum<T> sums[kCount] = {};
  for (int64_t k = 0; k < length; ++k) {
    for (int64_t j = 0; j < kCount; ++j) {
      scan_element(x[j][k * x_step], sums[j], y[j][k * y_step]);
    }
  }
}

}  // namespace

void CumSum::cpu(const View& x, const View& y, int64_t axis, bool reverse) {
  const auto d = static_cast<size_t>(axis);
  if (x.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using R = ScanResult<T>;
    const Lines lines(x.shape, axis);
    const int64_t length = lines.length();
    // In reverse a line is walked from its end.
    const int64_t x_step = reverse ? -x.strides[d] : x.strides[d];
    const int64_t y_step = reverse ? -y.strides[d] : y.strides[d];
    const T* x_data = x.as<T>() + (reverse ? (length - 1) * x.strides[d] : 0);
    R* y_data = y.as<R>() + (reverse ? (length - 1) * y.strides[d] : 0);
    if (lines.beside(x.strides) == 1 && lines.beside(y.strides) == 1 && d + 1 < x.shape.size()) {
      constexpr auto kSize = static_cast<int64_t>(sizeof(R));
      const int64_t share = lines.count() / num_threads() / kCacheLine * kCacheLine;
      const int64_t width = std::clamp(share, Lines::kStrip, kWidest);
      lines.for_each_strip(
          [&](int64_t line, int64_t count) {
            R* to = y_data + lines.offset(y.strides, line);
            const bool past_cache = count * kSize % kCacheLine == 0 &&
                                    goes_past_cache(to, y_step * kSize, y.numel() * kSize);
            scan_strip<T>(x_data + lines.offset(x.strides, line), x_step, to, y_step, length, count,
                          past_cache);
          },
          width);
      return;
    }
    lines.for_each_group(kTogether, [&](int64_t line, int64_t count) {
      const T* from[kTogether];
      R* to[kTogether];
      for (int64_t j = 0; j < count; ++j) {
        from[j] = x_data + lines.offset(x.strides, line + j);
        to[j] = y_data + lines.offset(y.strides, line + j);
      }
      if (count == kTogether) return scan_lines<T, kTogether>(from, x_step, to, y_step, length);
      for (int64_t j = 0; j < count; ++j) {
        scan_lines<T, 1>(from + j, x_step, to + j, y_step, length);
      }
    });
  });
}

}  // namespace lockstep::kernels
