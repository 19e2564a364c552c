#pragma once

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// y[k] = x[0] + … + x[k] along dimension `axis`, or x[k] + … + x[n - 1] in reverse. Any strides; y
// has x's shape and may be x. Floats: y has x's dtype, sums are kept in f64 (f32 for the 16-bit
// ones) and each is rounded once. Integers and bool: y is i64, and wraps.
struct CumSum {
  static void cpu(const View& x, const View& y, int64_t axis, bool reverse);
  static void cuda(const View& x, const View& y, int64_t axis, bool reverse);
};

}  // namespace lockstep::kernels
