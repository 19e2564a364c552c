// conv1d and the transposed convolutions, which are conv2d and its gradient in other words.

#include "lockstep/core/ops/conv.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

// (N, C, L) as (N, C, 1, L).
Tensor as_rows(const Tensor& x, std::string_view op, std::string_view what) {
  check(x.defined() && x.dim() == 3, op, [&] {
    return str_cat("want ", what, " of three dimensions, got ",
                   x.defined() ? to_string(x.shape()) : "an undefined tensor");
  });
  return unsqueeze(x, 2);
}

// The rows or columns of a transposed convolution.
int64_t transposed_size(int64_t input, int64_t kernel, size_t axis,
                        const ConvTranspose2dOptions& o) {
  return (input - 1) * o.stride[axis] - 2 * o.padding[axis] + o.dilation[axis] * (kernel - 1) +
         o.output_padding[axis] + 1;
}

}  // namespace

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv1dOptions& options) {
  return squeeze(
      conv2d(as_rows(x, "conv1d", "x (N, C, L)"),
             as_rows(weight, "conv1d", "weight (O, C / groups, k)"), bias,
             {{1, options.stride}, {0, options.padding}, {1, options.dilation}, options.groups}),
      2);
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& options) {
  check_same("conv_transpose2d", x, weight);
  const int64_t groups = options.groups;
  check(x.dim() == 4 && weight.dim() == 4 && groups > 0 && x.size(1) == weight.size(0) &&
            x.size(1) % groups == 0,
        "conv_transpose2d", [&] {
          return str_cat(
              "want x (N, C, H, W) and weight (C, O / groups, kh, kw) with C a multiple "
              "of groups, got x ",
              to_string(x.shape()), ", weight ", to_string(weight.shape()), ", groups ", groups);
        });
  Shape shape = {x.size(0), weight.size(1) * groups, 0, 0};
  for (size_t axis : {0, 1}) {
    check(options.output_padding[axis] >= 0 && options.output_padding[axis] < options.stride[axis],
          "conv_transpose2d", [&] {
            return str_cat("want an output_padding from 0 to below the stride, got ",
                           options.output_padding[axis], " with stride ", options.stride[axis]);
          });
    int64_t& size = shape[2 + axis];
    size = transposed_size(x.shape()[2 + axis], weight.shape()[2 + axis], axis, options);
    check(size > 0, "conv_transpose2d", [&] {
      return str_cat("want an output of at least one row and column, got ", size, " for x ",
                     to_string(x.shape()), " and weight ", to_string(weight.shape()));
    });
  }
  if (bias.defined()) {
    check_same("conv_transpose2d", x, bias);
    check(bias.shape() == Shape{shape[1]}, "conv_transpose2d",
          [&] { return str_cat("want a bias (", shape[1], "), got ", to_string(bias.shape())); });
  }
  const bool narrow_dtype = size_of(x.dtype()) == 2 && x.device().is_cpu();
  const auto wide = [&](const Tensor& t) { return narrow_dtype ? to(t, DType::kF32) : t; };
  Tensor y = conv2d_input_grad(wide(x), wide(weight), shape,
                               {options.stride, options.padding, options.dilation, groups});
  if (bias.defined()) y = y + reshape(wide(bias), {1, shape[1], 1, 1});
  return to(y, x.dtype());
}

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose1dOptions& options) {
  return squeeze(
      conv_transpose2d(as_rows(x, "conv_transpose1d", "x (N, C, L)"),
                       as_rows(weight, "conv_transpose1d", "weight (C, O / groups, k)"), bias,
                       {{1, options.stride},
                        {0, options.padding},
                        {0, options.output_padding},
                        {1, options.dilation},
                        options.groups}),
      2);
}

}  // namespace lockstep
