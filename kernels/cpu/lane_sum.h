#pragma once

#include <cstdint>

#include "lockstep/kernels/simd.h"

// Sums in a fixed order of additions: the same bits whatever the width of the processor's vectors.
// For the inside of simd_dispatch.
namespace lockstep::kernels {

// acc[c] += the sum over r of f(r * step + c, c), for r in [0, rows) and c in [0, width). Eight
// rows are added as a tree, so that acc passes through the cache once for each eight elements.
template <class T, class F>
LOCKSTEP_INLINE void add_rows_apart(int64_t rows, int64_t step, int64_t width, T* acc, const F& f) {
  int64_t r = 0;
  for (; r + 8 <= rows; r += 8) {
    const int64_t base = r * step;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const int64_t i = base + c;
      const T a = (f(i, c) + f(i + step, c)) + (f(i + 2 * step, c) + f(i + 3 * step, c));
      const T b =
          (f(i + 4 * step, c) + f(i + 5 * step, c)) + (f(i + 6 * step, c) + f(i + 7 * step, c));
      acc[c] += a + b;
    }
  }
  for (; r < rows; ++r) {
    const int64_t base = r * step;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) acc[c] += f(base + c, c);
  }
}

// The same for rows that follow each other.
template <class T, class F>
LOCKSTEP_INLINE void add_rows(int64_t rows, int64_t width, T* acc, const F& f) {
  add_rows_apart(rows, width, width, acc, f);
}

inline constexpr int64_t kSumLanes = 64;  // partial sums, side by side

// lanes[0] = the sum of the kSumLanes lanes.
template <class T>
LOCKSTEP_INLINE void fold_lanes(T* lanes) {
  for (int64_t half = kSumLanes / 2; half > 0; half /= 2) {
#pragma omp simd
    for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
}

// Calls f(i, kSumLanes) for whole rows of lanes of [begin, end), and f(i, count) for what is left,
// which may be nothing. The compiler sees the constant, and keeps lanes in registers.
template <class F>
LOCKSTEP_INLINE void for_each_lanes(int64_t begin, int64_t end, const F& f) {
  int64_t i = begin;
  for (; i + kSumLanes <= end; i += kSumLanes) f(i, kSumLanes);
  f(i, end - i);
}

// The sum of f(i) for i in [0, n), in partial sums. T is a floating type.
template <class T, class F>
LOCKSTEP_INLINE T lane_sum(int64_t n, const F& f) {
  T total{0};
  int64_t i = 0;
  if (n >= kSumLanes) {
    alignas(64) T acc[kSumLanes] = {};
    add_rows(n / kSumLanes, kSumLanes, acc,
             [&](int64_t k, int64_t) LOCKSTEP_INLINE_LAMBDA { return f(k); });
    fold_lanes(acc);
    total = acc[0];
    i = n / kSumLanes * kSumLanes;
  }
  for (; i < n; ++i) total += f(i);
  return total;
}

}  // namespace lockstep::kernels
