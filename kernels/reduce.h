#pragma once

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Reductions of x into y, which has as many dimensions: where y's size is 1 and x's is not, the
// dimension is reduced; all others agree. Any strides; y shares no memory with x.

// Floats: y has x's dtype; sums are taken in f32 for f16 and bf16, in several partial sums and
// block by block, so that the error grows with the logarithm of the count rather than with the
// count. Integers and bool: y is i64, and wraps. Zero elements sum to 0. The order of additions
// depends on shapes, strides and num_threads() alone.
struct Sum {
  static void cpu(const View& x, const View& y);
  static void cuda(const View& x, const View& y);
};

// The same for products; zero elements give 1.
struct Prod {
  static void cpu(const View& x, const View& y);
  static void cuda(const View& x, const View& y);
};

// The extreme value, in x's dtype; NaN if any is NaN. Throws Error(kInvalidArgument) on reducing
// zero elements.
struct Max {
  static void cpu(const View& x, const View& y);
  static void cuda(const View& x, const View& y);
};
struct Min {
  static void cpu(const View& x, const View& y);
  static void cuda(const View& x, const View& y);
};

// The place (i64) of the first extreme value, or of the first NaN, counted in row-major order over
// the reduced dimensions. Throws Error(kInvalidArgument) on reducing zero elements.
struct ArgMax {
  static void cpu(const View& x, const View& y);
  static void cuda(const View& x, const View& y);
};
struct ArgMin {
  static void cpu(const View& x, const View& y);
  static void cuda(const View& x, const View& y);
};

}  // namespace lockstep::kernels
