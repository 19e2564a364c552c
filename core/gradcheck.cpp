#include "lockstep/core/gradcheck.h"

#include <cmath>

#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

using Function = std::function<Tensor(const Tensors&)>;

// Fixed weights that turn a tensor into one number without symmetries that could hide an error.
Tensor weights_like(const Tensor& y) {
  Tensor weights = Tensor::empty(y.shape(), {DType::kF64});
  double* w = weights.data<double>();
  for (int64_t i = 0; i < y.numel(); ++i) w[i] = std::sin(1.0 + 0.7 * static_cast<double>(i)) + 0.3;
  return weights;
}

std::string compare(const Function& function, const Tensors& inputs, const Tensors& analytic,
                    const GradcheckOptions& options, std::string_view order) {
  // The function may differentiate inside, so recording stays on.
  const auto value = [&] { return function(inputs).item(); };
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].requires_grad()) continue;
    NoGrad no_grad;
    const Tensor expected = analytic[k].defined() ? contiguous(analytic[k].detach())
                                                  : Tensor::zeros(inputs[k].shape(), {DType::kF64});
    double* x = inputs[k].data<double>();
    for (int64_t i = 0; i < inputs[k].numel(); ++i) {
      const double before = x[i];
      x[i] = before + options.step;
      const double above = value();
      x[i] = before - options.step;
      const double below = value();
      x[i] = before;
      const double numeric = (above - below) / (2 * options.step);
      const double got = expected.data<double>()[i];
      if (!(std::abs(got - numeric) <= options.tolerance * (1 + std::abs(numeric)))) {
        return str_cat(order, " gradient of input ", k, ", element ", i, ": backward gives ", got,
                       ", differences give ", numeric);
      }
    }
  }
  return "";
}

Tensors differentiable(const Tensors& inputs) {
  Tensors out;
  for (const Tensor& input : inputs) {
    if (input.requires_grad()) out.push_back(input);
  }
  return out;
}

}  // namespace

std::string gradcheck(const Function& function, const Tensors& inputs, GradcheckOptions options) {
  for (const Tensor& input : inputs) {
    check(!input.requires_grad() || (input.dtype() == DType::kF64 && input.is_contiguous()),
          "gradcheck", "want contiguous f64 inputs");
  }
  const Tensors wanted = differentiable(inputs);
  // Spreads gradients of `wanted` over the places of all inputs.
  const auto spread = [&](const Tensors& gradients) {
    Tensors out(inputs.size());
    for (size_t k = 0, next = 0; k < inputs.size(); ++k) {
      if (inputs[k].requires_grad()) out[k] = gradients[next++];
    }
    return out;
  };
  const Function scalar = [&](const Tensors& x) {
    const EnableGrad enable;
    const Tensor y = function(x);
    return sum(y * weights_like(y));
  };
  const Tensors fused = grad({scalar(inputs)}, wanted, {}, {}, true);
  if (std::string wrong = compare(scalar, inputs, spread(fused), options, "first");
      !wrong.empty()) {
    return wrong;
  }

  // The differentiable backward must give what the fused one gives, and be right in turn.
  const Function gradient_sum = [&](const Tensors& x) {
    const EnableGrad enable;
    const Tensors gradients = grad({scalar(x)}, wanted, {}, {.create_graph = true}, true);
    Tensor total = Tensor::scalar(0, {DType::kF64});
    for (const Tensor& gradient : gradients) {
      if (gradient.defined()) total = total + sum(gradient * weights_like(gradient));
    }
    return total;
  };
  const Tensors recorded = grad({scalar(inputs)}, wanted, {}, {.create_graph = true}, true);
  for (size_t k = 0; k < wanted.size(); ++k) {
    if (!fused[k].defined() && !recorded[k].defined()) continue;
    const double difference = max(abs(fused[k].detach() - recorded[k].detach())).item();
    if (!(difference <= options.tolerance)) {
      return str_cat("the fused and the recorded backward differ by ", difference,
                     " for differentiable input ", k);
    }
  }
  if (!options.second_order) return "";
  const Tensor total = gradient_sum(inputs);
  if (!total.requires_grad())
    return compare(gradient_sum, inputs, Tensors(inputs.size()), options, "second");
  return compare(gradient_sum, inputs, spread(grad({total}, wanted, {}, {}, true)), options,
                 "second");
}

}  // namespace lockstep
