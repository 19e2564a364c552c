#include "lockstep/core/ops/pool.h"

#include "lockstep/core/autograd.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/pool.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

kernels::Pool2dParams params(const Pool2dOptions& options) {
  kernels::Pool2dParams out;
  out.kernel = options.kernel;
  out.stride = options.stride;
  for (size_t axis : {0, 1}) {
    if (out.stride[axis] == 0) out.stride[axis] = out.kernel[axis];
  }
  out.padding = options.padding;
  out.dilation = options.dilation;
  out.count_include_pad = options.count_include_pad;
  return out;
}

Shape output_shape(std::string_view op, const Tensor& x, const kernels::Pool2dParams& p) {
  check(x.dim() == 4 && is_floating(x.dtype()), op, [&] {
    return str_cat("want a floating x (N, C, H, W), got shape ", to_string(x.shape()));
  });
  Shape shape = x.shape();
  for (size_t axis : {0, 1}) {
    check(p.kernel[axis] > 0 && p.stride[axis] > 0 && p.dilation[axis] > 0 &&
              p.padding[axis] >= 0 && 2 * p.padding[axis] <= p.kernel[axis],
          op, "want a kernel, stride and dilation over 0 and a padding of at most half the kernel");
    const int64_t reach = p.dilation[axis] * (p.kernel[axis] - 1) + 1;
    const int64_t room = x.shape()[2 + axis] + 2 * p.padding[axis] - reach;
    check(room >= 0, op, [&] {
      return str_cat("want a window that fits into the padded input, got x ", to_string(x.shape()),
                     " and a window of ", reach);
    });
    shape[2 + axis] = room / p.stride[axis] + 1;
  }
  return shape;
}

// Not initialised, channels-last where `like` is.
Tensor empty_in_order_of(const Tensor& like, const Shape& shape, DType dtype) {
  Tensor out = Tensor::empty(shape, {dtype, like.device()});
  if (like.is_channels_last() && !like.is_contiguous()) {
    out.impl()->strides = channels_last_strides(shape);
  }
  return out;
}

Tensor max_pool2d_gather(const Tensor& x, const Tensor& places, const kernels::Pool2dParams& p);

// Adds each gradient at the place that its window's maximum came from.
Tensor max_pool2d_scatter(const Tensor& g, const Tensor& places, const Shape& x_shape,
                          const kernels::Pool2dParams& p) {
  Tensor gx = empty_in_order_of(places, x_shape, g.dtype());
  launch<kernels::MaxPool2dBackward>(g.device(), g.view(), places.view(), gx.view(), p);
  return record("max_pool2d_scatter", gx, {g},
                [places, p](const Tensor& u) { return Tensors{max_pool2d_gather(u, places, p)}; });
}

// The values of x (N, C, H, W) at the places of each window's maximum.
Tensor max_pool2d_gather(const Tensor& x, const Tensor& places, const kernels::Pool2dParams& p) {
  Tensor y = empty_in_order_of(places, places.shape(), x.dtype());
  launch<kernels::MaxPool2dGather>(x.device(), x.view(), places.view(), y.view());
  return record("max_pool2d_gather", y, {x}, [places, x_shape = x.shape(), p](const Tensor& u) {
    return Tensors{max_pool2d_scatter(u, places, x_shape, p)};
  });
}

Tensor avg_pool2d_spread(const Tensor& g, const Shape& x_shape, const Pool2dOptions& options,
                         bool channels_last) {
  Tensor gx = Tensor::empty(x_shape, g.options());
  if (channels_last) gx.impl()->strides = channels_last_strides(x_shape);
  launch<kernels::AvgPool2dBackward>(g.device(), g.view(), gx.view(), params(options));
  return record("avg_pool2d_spread", gx, {g},
                [options](const Tensor& u) { return Tensors{avg_pool2d(u, options)}; });
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options) {
  const kernels::Pool2dParams p = params(options);
  const Shape shape = output_shape("max_pool2d", x, p);
  Tensor y = empty_in_order_of(x, shape, x.dtype());
  Tensor places = empty_in_order_of(x, shape, DType::kI32);  // h * W + w in the channel's plane
  launch<kernels::MaxPool2d>(x.device(), x.view(), y.view(), places.view(), p);
  return record("max_pool2d", y, {x}, [places, x_shape = x.shape(), p](const Tensor& g) {
    return Tensors{max_pool2d_scatter(g, places, x_shape, p)};
  });
}

Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options) {
  const kernels::Pool2dParams p = params(options);
  check(p.dilation == std::array<int64_t, 2>{1, 1}, "avg_pool2d", "want no dilation");
  Tensor y = empty_in_order_of(x, output_shape("avg_pool2d", x, p), x.dtype());
  launch<kernels::AvgPool2d>(x.device(), x.view(), y.view(), p);
  const bool channels_last = x.is_channels_last() && !x.is_contiguous();
  return record("avg_pool2d", y, {x},
                [x_shape = x.shape(), options, channels_last](const Tensor& g) {
                  return Tensors{avg_pool2d_spread(g, x_shape, options, channels_last)};
                });
}

}  // namespace lockstep
