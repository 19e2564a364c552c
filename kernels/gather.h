#pragma once

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// One place along dimension `axis` for each element. Any dtype, any strides; outputs share no
// memory with inputs. A place outside the dimension is an Error(kInvalidArgument) that names it,
// thrown before anything is written; on CUDA the host waits for the device to know.

// y[i, j, k] = x[i, index[i, j, k], k] for axis 1, and likewise for others. index (i64) and y have
// one shape, which is nowhere larger than x's but along the axis.
struct Gather {
  static void cpu(const View& x, const View& index, const View& y, int64_t axis);
  static void cuda(const View& x, const View& index, const View& y, int64_t axis);
};

// y[i, index[i, j, k], k] += x[i, j, k]. x and index have one shape, which is nowhere larger than
// y's but along the axis. Additions to one place come in ascending order of j, so that the result
// does not depend on threads; f16 and bf16 are added in f32 and rounded after each addition;
// integers wrap; bool: or.
struct ScatterAdd {
  static void cpu(const View& x, const View& index, const View& y, int64_t axis);
  static void cuda(const View& x, const View& index, const View& y, int64_t axis);
};

// The same with = in place of +=: of several elements for one place the last (the largest j) stays.
struct Scatter {
  static void cpu(const View& x, const View& index, const View& y, int64_t axis);
  static void cuda(const View& x, const View& index, const View& y, int64_t axis);
};

}  // namespace lockstep::kernels
