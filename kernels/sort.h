#pragma once

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// places[..., k, ...] (i64) = where the k-th smallest (or largest) element of x stands along
// dimension `axis`; equal elements in their order in x. A NaN counts as larger than all numbers.
// places has x's shape but for the axis, along which it may be shorter: the first so many then.
// Every dtype, any strides.
struct ArgSort {
  static void cpu(const View& x, const View& places, int64_t axis, bool descending);
  static void cuda(const View& x, const View& places, int64_t axis, bool descending);
};

// How many elements are not 0 (NaN is not). Waits for the device.
struct CountNonzero {
  static int64_t cpu(const View& x);
  static int64_t cuda(const View& x);
};

// Where they stand, in row-major order: places, i64 without gaps, is (n, x.dim()) for coordinates
// or (n) for numbers in that order, with n what CountNonzero gives. Every dtype, any strides.
struct Nonzero {
  static void cpu(const View& x, const View& places);
  static void cuda(const View& x, const View& places);
};

}  // namespace lockstep::kernels
