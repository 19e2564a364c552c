#include "lockstep/core/ops/layer_norm.h"

#include "lockstep/core/autocast.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/layer_norm.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

DType statistics_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

void check_affine(std::string_view op, const Tensor& x, const Tensor& v, const Shape& wanted,
                  std::string_view what) {
  if (!v.defined()) return;
  check_same(op, x, v);
  check(v.shape() == wanted, op, [&] {
    return str_cat("want a ", what, " ", to_string(wanted), " for x ", to_string(x.shape()),
                   ", got ", to_string(v.shape()));
  });
}

// What backward needs of a call.
struct Context {
  Saved x;
  Saved weight;
  Saved mean;  // (rows), constants
  Saved rstd;
  Shape normalized_shape;
  double eps;
};

Tensors fused_backward(const Context& c, const Tensor& g) {
  const Tensor x = c.x.get();
  const Tensor weight = c.weight.get();
  const View weight_view = weight.defined() ? weight.view() : View();
  Tensors out(3);
  View views[3];
  const View* wanted[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (!wants_gradient(i)) continue;
    out[i] = i == 0 ? empty_like(x) : Tensor::empty(c.normalized_shape, x.options());
    views[i] = out[i].view();
    wanted[i] = &views[i];
  }
  launch<kernels::LayerNormBackward>(x.device(), g.view(), x.view(), c.mean.get().view(),
                                     c.rstd.get().view(), weight.defined() ? &weight_view : nullptr,
                                     wanted[0], wanted[1], wanted[2]);
  return out;
}

// The same in differentiable ops, with the statistics built from x anew.
Tensors recorded_backward(const Context& c, const Tensor& gradient) {
  const Tensor input = c.x.get();
  const DType dtype = statistics_dtype(input.dtype());
  const Tensor x = to(input, dtype);
  const Tensor g = to(gradient, dtype);
  Shape axes;
  Shape rows;
  for (int64_t d = 0; d < x.dim(); ++d) {
    const bool is_row = d < x.dim() - static_cast<int64_t>(c.normalized_shape.size());
    (is_row ? rows : axes).push_back(d);
  }
  const Tensor centred = x - mean(x, axes, true);
  const Tensor rstd = rsqrt(mean(square(centred), axes, true) + c.eps);
  const Tensor xhat = centred * rstd;
  const Tensor weight = c.weight.get();
  const Tensor gw = weight.defined() ? g * to(weight, dtype) : g;
  const Tensor gx = (gw - mean(gw, axes, true) - xhat * mean(gw * xhat, axes, true)) * rstd;
  const auto over_rows = [&](const Tensor& v) {
    return to(rows.empty() ? v : sum(v, rows), input.dtype());
  };
  return {to(gx, input.dtype()), over_rows(g * xhat), over_rows(g)};
}

}  // namespace

Tensor layer_norm(const Tensor& x_in, const Shape& normalized_shape, const Tensor& weight_in,
                  const Tensor& bias_in, double eps) {
  const Tensor x = autocast_f32(x_in);
  const Tensor weight = autocast_f32(weight_in);
  const Tensor bias = autocast_f32(bias_in);
  const size_t kept = x.shape().size() - std::min(x.shape().size(), normalized_shape.size());
  check(is_floating(x.dtype()) && !normalized_shape.empty() &&
            Shape(x.shape().begin() + static_cast<int64_t>(kept), x.shape().end()) ==
                normalized_shape,
        "layer_norm", [&] {
          return str_cat("want a floating x whose last dimensions are ",
                         to_string(normalized_shape), ", got ", name(x.dtype()), " ",
                         to_string(x.shape()));
        });
  check_affine("layer_norm", x, weight, normalized_shape, "weight");
  check_affine("layer_norm", x, bias, normalized_shape, "bias");
  const int64_t rows =
      numel(Shape(x.shape().begin(), x.shape().begin() + static_cast<int64_t>(kept)));
  const TensorOptions options = {statistics_dtype(x.dtype()), x.device()};
  const Tensor mean = Tensor::empty({rows}, options);
  const Tensor rstd = Tensor::empty({rows}, options);
  Tensor y = empty_like(x);
  const View weight_view = weight.defined() ? weight.view() : View();
  const View bias_view = bias.defined() ? bias.view() : View();
  launch<kernels::LayerNorm>(x.device(), x.view(), weight.defined() ? &weight_view : nullptr,
                             bias.defined() ? &bias_view : nullptr, eps, y.view(), mean.view(),
                             rstd.view());
  const Context context = {x, weight, mean, rstd, normalized_shape, eps};
  return record("layer_norm", y, {x, weight, bias}, [context](const Tensor& g) {
    return grad_enabled() ? recorded_backward(context, g) : fused_backward(context, g);
  });
}

Tensor group_norm(const Tensor& x_in, int64_t num_groups, const Tensor& weight_in,
                  const Tensor& bias_in, double eps) {
  const Tensor x = autocast_f32(x_in);
  const Tensor weight = autocast_f32(weight_in);
  const Tensor bias = autocast_f32(bias_in);
  check(x.dim() >= 2 && is_floating(x.dtype()) && num_groups > 0 && x.size(1) % num_groups == 0,
        "group_norm", [&] {
          return str_cat("want a floating x (N, C, …) and num_groups that divides C, got x ",
                         to_string(x.shape()), " and ", num_groups);
        });
  check_affine("group_norm", x, weight, {x.size(1)}, "weight");
  check_affine("group_norm", x, bias, {x.size(1)}, "bias");
  int64_t size = x.size(1) / num_groups;
  for (int64_t d = 2; d < x.dim(); ++d) size *= x.size(d);
  const Tensor rows = reshape(x, {x.size(0) * num_groups, size});
  Tensor y = reshape(layer_norm(rows, {size}, Tensor(), Tensor(), eps), x.shape());
  Shape channels(x.shape().size(), 1);
  channels[1] = x.size(1);
  if (weight.defined()) y = y * reshape(weight, channels);
  return bias.defined() ? y + reshape(bias, channels) : y;
}

Tensor instance_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check(x.dim() >= 3 && x.numel() != x.size(0) * x.size(1), "instance_norm", [&] {
    return str_cat("want x (N, C, …) with more than one value per channel, got ",
                   to_string(x.shape()));
  });
  return group_norm(x, std::max<int64_t>(1, x.size(1)), weight, bias, eps);
}

}  // namespace lockstep
