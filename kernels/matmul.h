#pragma once

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// out (m, n) = a (m, k) times b (k, n), plus bias (n) in every row unless it is null; or batches,
// (B, m, k), (B, k, n) and (B, m, n). f32, f64, f16 and bf16, one dtype for all; 16-bit products
// are summed in f32. Any strides: transposes cost nothing, a matrix with neither inner stride 1 is
// copied first. out shares no memory with the rest. k = 0 gives the bias, or zeros.
// Throws Error(kInvalidArgument) for other dtypes, Error(kInternal) with oneDNN's message, on CUDA
// Error(kDevice) with cuBLASLt's.
struct MatMul {
  static void cpu(const View& a, const View& b, const View& out, const View* bias);
  static void cuda(const View& a, const View& b, const View& out, const View* bias);
};

// out = gelu(y) in the tanh form (elementwise.h's GeluTanh) of the y that MatMul gives, which goes
// to `before` unless that is null. Where a library does it all at once, gelu sees the sums before
// they are rounded. before has out's shape and dtype.
struct MatMulGelu {
  static void cpu(const View& a, const View& b, const View& out, const View* bias,
                  const View* before);
  static void cuda(const View& a, const View& b, const View& out, const View* bias,
                   const View* before);
};

}  // namespace lockstep::kernels
