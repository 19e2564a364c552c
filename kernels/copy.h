#pragma once

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// y = x, converted to y's dtype; one shape, any strides (x may broadcast with stride 0), memory
// that does not overlap. Floats round to nearest even; a float becomes an integer by dropping its
// fraction, and one that the integer type cannot hold (NaN too) saturates (NaN gives 0); integers
// wrap; anything but 0 becomes true.
struct Copy {
  static void cpu(const View& x, const View& y);
  static void cuda(const View& x, const View& y);
};

// Every element of x = value, converted by the same rules.
struct Fill {
  static void cpu(const View& x, double value);
  static void cuda(const View& x, double value);
  static void cpu(const View& x, int64_t value);
  static void cuda(const View& x, int64_t value);
};

}  // namespace lockstep::kernels
