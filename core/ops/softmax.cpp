#include "lockstep/core/ops/softmax.h"

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/softmax.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

int64_t axis_of(const Tensor& x, int64_t dim, std::string_view op) {
  check(is_floating(x.dtype()) && x.dim() > 0, op, [&] {
    return str_cat("want a floating tensor of one dimension and more, got shape ",
                   to_string(x.shape()));
  });
  return normalize_dim(dim, x.dim(), op);
}

Tensor reduce(const Tensor& losses, Reduction reduction) {
  if (reduction == Reduction::kNone) return losses;
  return reduction == Reduction::kMean ? mean(losses) : sum(losses);
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim) {
  const int64_t axis = axis_of(x, dim, "softmax");
  Tensor y = empty_like(x);
  launch<kernels::Softmax>(x.device(), x.view(), y.view(), axis);
  return record("softmax", y, {x}, [y = Saved::result(y), axis](const Tensor& g) {
    const Tensor value = y.get();
    if (grad_enabled()) return Tensors{value * (g - sum(g * value, {axis}, true))};
    Tensor gx = empty_like(value);
    launch<kernels::SoftmaxBackward>(g.device(), g.view(), value.view(), gx.view(), axis);
    return Tensors{gx};
  });
}

Tensor log_softmax(const Tensor& x, int64_t dim) {
  const int64_t axis = axis_of(x, dim, "log_softmax");
  Tensor y = empty_like(x);
  launch<kernels::LogSoftmax>(x.device(), x.view(), y.view(), axis);
  return record("log_softmax", y, {x}, [y = Saved::result(y), axis](const Tensor& g) {
    const Tensor value = y.get();
    if (grad_enabled()) return Tensors{g - exp(value) * sum(g, {axis}, true)};
    Tensor gx = empty_like(value);
    launch<kernels::LogSoftmaxBackward>(g.device(), g.view(), value.view(), gx.view(), axis);
    return Tensors{gx};
  });
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target, Reduction reduction,
                     int64_t ignore_index) {
  check(logits.dim() == 2 && target.dim() == 1 && logits.size(0) == target.size(0) &&
            is_floating(logits.dtype()) && target.dtype() == DType::kI64,
        "cross_entropy", [&] {
          return str_cat("want floating logits (N, C) and i64 targets (N), got shapes ",
                         to_string(logits.shape()), " and ", to_string(target.shape()));
        });
  check(logits.device() == target.device(), "cross_entropy",
        "want logits and targets on one device");
  const int64_t rows = logits.size(0);
  Tensor losses = Tensor::empty({rows}, logits.options());
  Tensor lse = Tensor::empty({rows}, logits.options());
  launch<kernels::CrossEntropy>(logits.device(), logits.view(), target.view(), ignore_index,
                                losses.view(), lse.view());
  Tensor counted;  // 1 for rows that count
  {
    NoGrad no_grad;
    counted = to(ne(target, static_cast<double>(ignore_index)), logits.dtype());
  }
  losses = record("cross_entropy", losses, {logits},
                  [logits = Saved(logits), target = Saved(target), lse = Saved(lse), counted,
                   ignore_index](const Tensor& g) {  // (N)
                    const Tensor x = logits.get();
                    if (!grad_enabled()) {
                      Tensor gx = empty_like(x);
                      launch<kernels::CrossEntropyBackward>(x.device(), x.view(),
                                                            target.get().view(), ignore_index,
                                                            lse.get().view(), g.view(), gx.view());
                      return Tensors{gx};
                    }
                    const Tensor classes = reshape(
                        Tensor::arange(x.size(1), {DType::kI64, x.device()}), {1, x.size(1)});
                    const Tensor hit = to(eq(unsqueeze(target.get(), 1), classes), x.dtype());
                    return Tensors{unsqueeze(g * counted, 1) * (softmax(x, 1) - hit)};
                  });
  if (reduction != Reduction::kMean) return reduce(losses, reduction);
  return sum(losses) / sum(counted);
}

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  check_same("mse_loss", input, target);
  check(input.shape() == target.shape(), "mse_loss", [&] {
    return str_cat("want input and target of one shape, got ", to_string(input.shape()), " and ",
                   to_string(target.shape()));
  });
  return reduce(square(input - target), reduction);
}

}  // namespace lockstep
