#pragma once

#include <vector>

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

// The places of the elements that are not 0 (NaN is not), counted in row-major order, ascending.
struct Nonzero {
  static std::vector<int64_t> cpu(const View& x);
  static std::vector<int64_t> cuda(const View& x);
};

}  // namespace lockstep::kernels
