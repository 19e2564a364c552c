#pragma once

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Slices of x along dimension `axis`, picked by index (K), i64. Any dtype, any strides. A place
// outside the dimension is an Error(kInvalidArgument) that names it, thrown before anything is
// written; on CUDA the host waits for the device to know.

// y[..., k, ...] = x[..., index[k], ...].
struct IndexSelect {
  static void cpu(const View& x, const View& index, const View& y, int64_t axis);
  static void cuda(const View& x, const View& index, const View& y, int64_t axis);
};

// y[..., index[k], ...] += x[..., k, ...], k in ascending order, so that repeated places have one
// result. f16 and bf16 are added in f32 and rounded after each addition; integers wrap; bool: or.
struct IndexAdd {
  static void cpu(const View& x, const View& index, const View& y, int64_t axis);
  static void cuda(const View& x, const View& index, const View& y, int64_t axis);
};

}  // namespace lockstep::kernels
