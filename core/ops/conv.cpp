#include "lockstep/core/ops/conv.h"

#include "lockstep/core/autocast.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/conv.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

kernels::Conv2dParams params(const Conv2dOptions& options) {
  return {options.stride, options.padding, options.dilation, options.groups};
}

// 0 where the kernel does not fit.
int64_t output_size(int64_t input, int64_t kernel, size_t axis, const Conv2dOptions& options) {
  const int64_t room =
      input + 2 * options.padding[axis] - options.dilation[axis] * (kernel - 1) - 1;
  return room < 0 ? 0 : room / options.stride[axis] + 1;
}

// The shape of conv2d's result. Throws Error(kInvalidArgument) that names `op`.
Shape output_shape(std::string_view op, const Shape& x, const Shape& weight,
                   const Conv2dOptions& options) {
  const int64_t groups = options.groups;
  const auto message = [&](std::string_view what) {
    return str_cat(what, ", got x ", to_string(x), ", weight ", to_string(weight), ", groups ",
                   groups);
  };
  for (size_t axis : {0, 1}) {
    check(options.stride[axis] > 0 && options.padding[axis] >= 0 && options.dilation[axis] > 0, op,
          "want a stride and a dilation over 0 and a padding of 0 and more");
  }
  check(x.size() == 4 && weight.size() == 4 && groups > 0, op,
        [&] { return message("want x (N, C, H, W) and weight (O, C / groups, kh, kw)"); });
  check(x[1] == weight[1] * groups && weight[0] % groups == 0, op, [&] {
    return message(
        "want as many channels in x as weight has, times groups, and O a multiple of "
        "groups");
  });
  const Shape out = {x[0], weight[0], output_size(x[2], weight[2], 0, options),
                     output_size(x[3], weight[3], 1, options)};
  check(weight[2] > 0 && weight[3] > 0 && out[2] > 0 && out[3] > 0, op,
        [&] { return message("want a kernel that fits into the padded input"); });
  return out;
}

Tensor empty_channels_last(const Shape& shape, const TensorOptions& options) {
  Tensor out = Tensor::empty(shape, options);
  out.impl()->strides = channels_last_strides(shape);
  return out;
}

}  // namespace

Tensor conv2d(const Tensor& x_in, const Tensor& weight_in, const Tensor& bias_in,
              const Conv2dOptions& options) {
  const Tensor x = autocast_low(x_in);
  const Tensor weight = autocast_low(weight_in);
  const Tensor bias = autocast_low(bias_in);
  check_same("conv2d", x, weight);
  const Shape shape = output_shape("conv2d", x.shape(), weight.shape(), options);
  if (bias.defined()) {
    check_same("conv2d", x, bias);
    check(bias.shape() == Shape{shape[1]}, "conv2d",
          [&] { return str_cat("want a bias (", shape[1], "), got ", to_string(bias.shape())); });
  }
  if (size_of(x.dtype()) == 2 && x.device().is_cpu()) {
    const Autocast wide(DType::kBF16, false);
    const Tensor wide_bias = bias.defined() ? to(bias, DType::kF32) : bias;
    return to(conv2d(to(x, DType::kF32), to(weight, DType::kF32), wide_bias, options), x.dtype());
  }
  Tensor y = empty_channels_last(shape, x.options());
  const View bias_view = bias.defined() ? bias.view() : View();
  launch<kernels::Conv2d>(x.device(), x.view(), weight.view(),
                          bias.defined() ? &bias_view : nullptr, y.view(), params(options));
  return record(
      "conv2d", y, {x, weight, bias},
      [x = Saved(x), weight = Saved(weight), x_shape = x.shape(), weight_shape = weight.shape(),
       options](const Tensor& g) {
        return Tensors{
            wants_gradient(0) ? conv2d_input_grad(g, weight.get(), x_shape, options) : Tensor(),
            wants_gradient(1) ? conv2d_weight_grad(g, x.get(), weight_shape, options) : Tensor(),
            wants_gradient(2) ? sum(g, {0, 2, 3}) : Tensor()};
      });
}

// With <a, b> the sum of products: <u, input_grad(g, w)> = <conv2d(u, w), g>, which gives both
// gradients; likewise <u, weight_grad(g, x)> = <conv2d(x, u), g>.
Tensor conv2d_input_grad(const Tensor& grad, const Tensor& weight, const Shape& input_shape,
                         const Conv2dOptions& options) {
  check_same("conv2d_input_grad", grad, weight);
  check(grad.shape() == output_shape("conv2d_input_grad", input_shape, weight.shape(), options),
        "conv2d_input_grad",
        [&] { return str_cat("got a gradient of shape ", to_string(grad.shape())); });
  Tensor y = empty_channels_last(input_shape, grad.options());
  launch<kernels::Conv2dInputGrad>(grad.device(), grad.view(), weight.view(), y.view(),
                                   params(options));
  return record("conv2d_input_grad", y, {grad, weight},
                [grad = Saved(grad), weight = Saved(weight), weight_shape = weight.shape(),
                 options](const Tensor& u) {
                  return Tensors{
                      wants_gradient(0) ? conv2d(u, weight.get(), Tensor(), options) : Tensor(),
                      wants_gradient(1) ? conv2d_weight_grad(grad.get(), u, weight_shape, options)
                                        : Tensor()};
                });
}

Tensor conv2d_weight_grad(const Tensor& grad, const Tensor& x, const Shape& weight_shape,
                          const Conv2dOptions& options) {
  check_same("conv2d_weight_grad", grad, x);
  check(grad.shape() == output_shape("conv2d_weight_grad", x.shape(), weight_shape, options),
        "conv2d_weight_grad",
        [&] { return str_cat("got a gradient of shape ", to_string(grad.shape())); });
  Tensor y = Tensor::empty(weight_shape, grad.options());
  launch<kernels::Conv2dWeightGrad>(grad.device(), grad.view(), x.view(), y.view(),
                                    params(options));
  return record(
      "conv2d_weight_grad", y, {grad, x},
      [grad = Saved(grad), x = Saved(x), x_shape = x.shape(), options](const Tensor& u) {
        return Tensors{
            wants_gradient(0) ? conv2d(x.get(), u, Tensor(), options) : Tensor(),
            wants_gradient(1) ? conv2d_input_grad(grad.get(), u, x_shape, options) : Tensor()};
      });
}

}  // namespace lockstep
