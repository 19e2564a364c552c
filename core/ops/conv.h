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
// result is channels-last in memory, and x is fastest when it is too. Floating dtypes; the 16-bit
// ones are computed in f32 and rounded once.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(),
              const Conv2dOptions& options = {});

// The two gradients of conv2d, which are linear in each argument and differentiable in turn.
// `input_shape` is (N, C, H, W), `weight_shape` (O, C / groups, kh, kw).
Tensor conv2d_input_grad(const Tensor& grad, const Tensor& weight, const Shape& input_shape,
                         const Conv2dOptions& options = {});
Tensor conv2d_weight_grad(const Tensor& grad, const Tensor& x, const Shape& weight_shape,
                          const Conv2dOptions& options = {});

struct Conv1dOptions {
  int64_t stride = 1;
  int64_t padding = 0;  // zeros on both sides
  int64_t dilation = 1;
  int64_t groups = 1;
};

// The same along one dimension: x (N, C, L), weight (O, C / groups, k), bias (O): (N, O, L').
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(),
              const Conv1dOptions& options = {});

struct ConvTranspose2dOptions {
  std::array<int64_t, 2> stride = {1, 1};  // rows, columns; likewise below
  std::array<int64_t, 2> padding = {0, 0};
  std::array<int64_t, 2> output_padding = {0, 0};  // more rows and columns at the end, below stride
  std::array<int64_t, 2> dilation = {1, 1};
  int64_t groups = 1;
};

// The transpose of conv2d (what its gradient does to an input): x (N, C, H, W), weight
// (C, O / groups, kh, kw), bias (O): (N, O, H', W') with
// H' = (H - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1.
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(),
                        const ConvTranspose2dOptions& options = {});

struct ConvTranspose1dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t output_padding = 0;
  int64_t dilation = 1;
  int64_t groups = 1;
};

// x (N, C, L), weight (C, O / groups, k), bias (O): (N, O, L').
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(),
                        const ConvTranspose1dOptions& options = {});

}  // namespace lockstep
