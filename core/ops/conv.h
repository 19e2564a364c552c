#pragma once

#include <array>

#include "lockstep/core/tensor.h"

namespace lockstep {

struct Conv2dOptions {
  std::array<int64_t, 2> stride = {1, 1};   // rows, columns; likewise below
  std::array<int64_t, 2> padding = {0, 0};  // zeros on both sides
  std::array<int64_t, 2> dilation = {1, 1};
  int64_t groups = 1;
};

// Cross-correlation of x (N, C, H, W) with weight (O, C / groups, kh, kw), plus bias (O) unless it
// is undefined: (N, O, H', W') with H' = (H + 2 padding - dilation (kh - 1) - 1) / stride + 1. The
// result is channels-last in memory, and x is fastest when it is too. f32 and f64.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(),
              const Conv2dOptions& options = {});

// The two gradients of conv2d, which are linear in each argument and differentiable in turn.
// `input_shape` is (N, C, H, W), `weight_shape` (O, C / groups, kh, kw).
Tensor conv2d_input_grad(const Tensor& grad, const Tensor& weight, const Shape& input_shape,
                         const Conv2dOptions& options = {});
Tensor conv2d_weight_grad(const Tensor& grad, const Tensor& x, const Shape& weight_shape,
                          const Conv2dOptions& options = {});

}  // namespace lockstep
