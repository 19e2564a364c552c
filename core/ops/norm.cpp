#include "lockstep/core/ops/norm.h"

#include <algorithm>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

// Statistics of 16-bit inputs are f32.
DType statistics_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// All dimensions but the channels'.
Shape other_axes(const Tensor& x) {
  Shape axes = {0};
  for (int64_t i = 2; i < x.dim(); ++i) axes.push_back(i);
  return axes;
}

// (C) as it broadcasts against (N, C, …).
Tensor per_channel(const Tensor& v, const Tensor& x) {
  Shape shape(x.shape().size(), 1);
  shape[1] = x.size(1);
  return reshape(v, shape);
}

void check_arguments(const Tensor& x, const BatchNormArguments& a) {
  check(x.dim() >= 2 && x.dim() <= 5 && is_floating(x.dtype()), "batch_norm", [&] {
    return str_cat("want a floating x (N, C, …) of 2 to 5 dimensions, got shape ",
                   to_string(x.shape()));
  });
  const Shape wanted = {x.size(1)};
  const std::pair<const char*, const Tensor*> vectors[] = {{"weight", &a.weight},
                                                           {"bias", &a.bias},
                                                           {"running_mean", &a.running_mean},
                                                           {"running_var", &a.running_var}};
  for (const auto& [label, v] : vectors) {
    check(!v->defined() || v->shape() == wanted, "batch_norm", [&, label = label, v = v] {
      return str_cat("want ", label, " ", to_string(wanted), " for x ", to_string(x.shape()),
                     ", got ", to_string(v->shape()));
    });
  }
  check(a.training || (a.running_mean.defined() && a.running_var.defined()), "batch_norm",
        "want running_mean and running_var when not training");
}

// y = (x - mean) * invstd * weight + bias.
Tensor apply(const Tensor& x, const Tensor& mean, const Tensor& invstd,
             const BatchNormArguments& a) {
  Tensor y = empty_like(x);
  const View weight = a.weight.defined() ? a.weight.view() : View();
  const View bias = a.bias.defined() ? a.bias.view() : View();
  launch<kernels::BatchNormApply>(x.device(), x.view(), mean.view(), invstd.view(),
                                  a.weight.defined() ? &weight : nullptr,
                                  a.bias.defined() ? &bias : nullptr, y.view());
  return y;
}

// What backward needs of a call.
struct Context {
  Saved x;
  Saved weight;
  Saved mean;  // statistics that were applied; constants
  Saved invstd;
  std::shared_ptr<BatchNormGroup> group;
  int64_t count;  // over the group; 0 for fixed statistics
  double eps;
  DType weight_dtype;
};

Tensor all_sum(const Context& c, const Tensor& x) { return c.group ? c.group->all_sum(x) : x; }

Tensors fused_backward(const Context& c, const Tensor& g) {
  const Tensor x = c.x.get();
  const Tensor weight = c.weight.get();
  const TensorOptions options = {c.mean.get().dtype(), x.device()};
  Tensor sums = Tensor::empty({2, x.size(1)}, options);  // of g, of g * xhat
  Tensor sum_g = select(sums, 0, 0);
  Tensor sum_g_xhat = select(sums, 0, 1);
  launch<kernels::BatchNormBackwardReduce>(x.device(), g.view(), x.view(), c.mean.get().view(),
                                           c.invstd.get().view(), sum_g.view(), sum_g_xhat.view());
  Tensors out = {Tensor(), to(sum_g_xhat, c.weight_dtype), to(sum_g, c.weight_dtype)};
  Tensor total = c.count == 0 ? zeros_like(sums) : all_sum(c, sums);
  if (wants_gradient(0)) {
    out[0] = empty_like(x);
    const View weight_view = weight.defined() ? weight.view() : View();
    launch<kernels::BatchNormBackwardApply>(
        x.device(), g.view(), x.view(), c.mean.get().view(), c.invstd.get().view(),
        weight.defined() ? &weight_view : nullptr, select(total, 0, 0).view(),
        select(total, 0, 1).view(), std::max<int64_t>(c.count, 1), out[0].view());
  }
  return out;
}

// The same in differentiable ops: xhat is built from x anew, so that the gradient of the statistics
// is recorded too.
Tensors recorded_backward(const Context& c, const Tensor& gradient) {
  const Tensor input = c.x.get();
  const DType dtype = c.mean.get().dtype();
  const Tensor x = to(input, dtype);
  const Tensor g = to(gradient, dtype);
  const Shape axes = other_axes(x);
  const auto channels = [&](const Tensor& v) { return per_channel(v, x); };
  Tensor xhat;
  Tensor invstd;
  if (c.count == 0) {
    invstd = c.invstd.get();
    xhat = (x - channels(c.mean.get())) * channels(invstd);
  } else {
    const auto n = static_cast<double>(c.count);
    const Tensor centred = x - channels(all_sum(c, sum(x, axes)) / n);
    invstd = rsqrt(all_sum(c, sum(square(centred), axes)) / n + c.eps);
    xhat = centred * channels(invstd);
  }
  const Tensor sum_g = sum(g, axes);
  const Tensor sum_g_xhat = sum(g * xhat, axes);
  Tensor gx = g;
  if (c.count > 0) {
    const auto n = static_cast<double>(c.count);
    const std::array<Tensor, 2> both = {sum_g, sum_g_xhat};
    const Tensor total = all_sum(c, stack(both)) / n;
    gx = g - channels(select(total, 0, 0)) - xhat * channels(select(total, 0, 1));
  }
  gx = gx * channels(invstd);
  if (const Tensor weight = c.weight.get(); weight.defined()) {
    gx = gx * channels(to(weight, dtype));
  }
  return {to(gx, input.dtype()), to(sum_g_xhat, c.weight_dtype), to(sum_g, c.weight_dtype)};
}

void update_running(const BatchNormArguments& a, const Tensor& mean, const Tensor& m2,
                    int64_t count) {
  NoGrad no_grad;
  const auto blend = [&](Tensor running, const Tensor& batch) {
    running.copy_(to(running, batch.dtype()) * (1 - a.momentum) + batch * a.momentum);
    running.mark_changed("batch_norm");
  };
  if (a.running_mean.defined()) blend(a.running_mean, mean);
  if (a.running_var.defined()) blend(a.running_var, m2 / static_cast<double>(count - 1));
}

}  // namespace

Tensor batch_norm(const Tensor& x, const BatchNormArguments& a) {
  check_arguments(x, a);
  Tensor mean;
  Tensor invstd;
  int64_t count = 0;
  {
    NoGrad no_grad;
    const DType dtype = statistics_dtype(x.dtype());
    if (a.training) {
      mean = Tensor::zeros({x.size(1)}, {dtype, x.device()});
      Tensor m2 = Tensor::zeros({x.size(1)}, {dtype, x.device()});
      count = x.size(1) == 0 ? 0 : x.numel() / x.size(1);
      if (count > 0) {
        launch<kernels::BatchNormStats>(x.device(), x.view(), mean.view(), m2.view());
      }
      if (a.group != nullptr) a.group->merge_statistics(mean, m2, count);
      check(count != 1, "batch_norm", [&] {
        return str_cat("want more than one value per channel in training, got x ",
                       to_string(x.shape()), a.group ? " over the whole group" : "");
      });
      if (count > 0) update_running(a, mean, m2, count);
      invstd = rsqrt(m2 / static_cast<double>(std::max<int64_t>(count, 1)) + a.eps);
    } else {
      // Copies: the graph keeps them, and the buffers change in the next training step.
      mean = clone(to(a.running_mean, dtype));
      invstd = rsqrt(to(a.running_var, dtype) + a.eps);
    }
  }
  Tensor y = apply(x, mean, invstd, a);
  const Context context = {x,
                           a.weight,
                           mean,
                           invstd,
                           a.training ? a.group : nullptr,
                           count,
                           a.eps,
                           a.weight.defined() ? a.weight.dtype() : x.dtype()};
  return record("batch_norm", y, {x, a.weight, a.bias}, [context](const Tensor& g) {
    return grad_enabled() ? recorded_backward(context, g) : fused_backward(context, g);
  });
}

}  // namespace lockstep
