#pragma once

#include <array>

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Rows, then columns. H' = (H + 2 padding - dilation (kh - 1) - 1) / stride + 1.
struct Conv2dParams {
  std::array<int64_t, 2> stride = {1, 1};
  std::array<int64_t, 2> padding = {0, 0};
  std::array<int64_t, 2> dilation = {1, 1};
  int64_t groups = 1;
};

// Cross-correlation of x (N, C, H, W) with weight (O, C / groups, kh, kw) and its two gradients.
// f32 by oneDNN, f64 (for gradient checks) by a plain loop; on CUDA every floating dtype by cuDNN,
// sums in f32 or f64. Any strides; x, y and their gradients are fast in channels-last memory,
// others are converted on the way. Sizes agree, each as the formula above says; an empty output is
// a no-op, an empty sum gives zeros. Throws Error(kInvalidArgument) for other dtypes,
// Error(kInternal) with oneDNN's message, on CUDA Error(kDevice) with cuDNN's, and where the build
// found no cuDNN.

// y (N, O, H', W') = x * weight + bias (O), where bias is not null.
struct Conv2d {
  static void cpu(const View& x, const View& weight, const View* bias, const View& y,
                  const Conv2dParams& params);
  static void cuda(const View& x, const View& weight, const View* bias, const View& y,
                   const Conv2dParams& params);
};

// gx (N, C, H, W), given g = the gradient of y.
struct Conv2dInputGrad {
  static void cpu(const View& g, const View& weight, const View& gx, const Conv2dParams& params);
  static void cuda(const View& g, const View& weight, const View& gx, const Conv2dParams& params);
};

// gweight (O, C / groups, kh, kw), given g = the gradient of y. The bias's gradient is a Sum of g.
struct Conv2dWeightGrad {
  static void cpu(const View& g, const View& x, const View& gweight, const Conv2dParams& params);
  static void cuda(const View& g, const View& x, const View& gweight, const Conv2dParams& params);
};

}  // namespace lockstep::kernels
