#include "lockstep/core/ops/loss.h"

#include "lockstep/core/autocast.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/index.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/core/ops/softmax.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/softmax.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

Tensor reduce(std::string_view op, const Tensor& losses, Reduction reduction) {
  if (reduction == Reduction::kNone) return losses;
  check(reduction != Reduction::kBatchMean, op,
        "want kNone, kMean or kSum; kBatchMean is kl_div's");
  return reduction == Reduction::kMean ? mean(losses) : sum(losses);
}

// Classes last, one row for each target: (N, C, …) as (rows, C).
Tensor as_rows(const Tensor& x) {
  if (x.dim() == 2) return x;
  Shape order = {0};
  for (int64_t d = 2; d < x.dim(); ++d) order.push_back(d);
  order.push_back(1);
  return reshape(permute(x, order), {x.size(1) == 0 ? 0 : x.numel() / x.size(1), x.size(1)});
}

// Losses of rows in the shape of the targets.
Tensor in_shape_of(const Tensor& losses, const Shape& shape) {
  return losses.shape() == shape ? losses : reshape(losses, shape);
}

Shape without_classes(const Tensor& x) {
  Shape shape = x.shape();
  shape.erase(shape.begin() + 1);
  return shape;
}

void check_classes(std::string_view op, const Tensor& x, const Tensor& target,
                   const Tensor& weight) {
  check(x.dim() >= 2 && is_floating(x.dtype()) && target.dtype() == DType::kI64 &&
            target.shape() == without_classes(x),
        op, [&] {
          return str_cat("want a floating input (N, C, …) and i64 targets (N, …), got ",
                         name(x.dtype()), " ", to_string(x.shape()), " and ", name(target.dtype()),
                         " ", to_string(target.shape()));
        });
  check(x.device() == target.device(), op, "want input and targets on one device");
  if (!weight.defined()) return;
  check_same(op, x, weight);
  check(weight.shape() == Shape{x.size(1)}, op, [&] {
    return str_cat("want a weight for each class, (", x.size(1), "), got ",
                   to_string(weight.shape()));
  });
}

// The fused softmax and loss of rows, (rows).
Tensor fused_cross_entropy(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                           const Tensor& counted) {
  const Tensor losses = Tensor::empty({logits.size(0)}, logits.options());
  const Tensor lse = Tensor::empty({logits.size(0)}, logits.options());
  launch<kernels::CrossEntropy>(logits.device(), logits.view(), target.view(), ignore_index,
                                losses.view(), lse.view());
  return record("cross_entropy", losses, {logits},
                [logits = Saved(logits), target = Saved(target), lse = Saved(lse), counted,
                 ignore_index](const Tensor& g) {  // (rows)
                  const Tensor x = logits.get();
                  if (!grad_enabled()) {
                    Tensor gx = logits.reuse();  // large where classes are words
                    if (!gx.defined()) gx = empty_like(x);
                    launch<kernels::CrossEntropyBackward>(x.device(), x.view(), target.get().view(),
                                                          ignore_index, lse.get().view(), g.view(),
                                                          gx.view());
                    return Tensors{gx};
                  }
                  const Tensor classes =
                      reshape(Tensor::arange(x.size(1), {DType::kI64, x.device()}), {1, x.size(1)});
                  const Tensor hit = to(eq(unsqueeze(target.get(), 1), classes), x.dtype());
                  return Tensors{unsqueeze(g * counted, 1) * (softmax(x, 1) - hit)};
                });
}

// What each row counts: its target's weight, or 0 for a row to ignore. Constants, (rows).
struct Rows {
  Tensor ignored;  // bool
  Tensor target;   // a class in range, 0 where ignored
  Tensor factor;
};

Rows rows_of(std::string_view op, const Tensor& x, const Tensor& target, int64_t ignore_index,
             const Tensor& weight) {
  const NoGrad no_grad;
  const int64_t classes = x.size(1);
  const std::vector<int64_t> values = target.to_vector<int64_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    check((values[i] >= 0 && values[i] < classes) || values[i] == ignore_index, op, [&] {
      return str_cat("want targets in [0, ", classes, ") or ", ignore_index,
                     ", the one to ignore; row ", i, " has ", values[i]);
    });
  }
  Rows rows;
  rows.ignored = eq(target, static_cast<double>(ignore_index));
  rows.target = where(rows.ignored, 0.0, target);
  const Tensor ones = Tensor::ones(target.shape(), x.options());
  const Tensor weights = weight.defined() ? index_select(weight, 0, rows.target) : ones;
  rows.factor = where(rows.ignored, 0.0, weights);
  return rows;
}

// -factor x[target] for rows x (rows, C); what is ignored is chosen away, be it inf or NaN.
Tensor picked(const Tensor& x, const Rows& rows) {
  const Tensor first =
      Tensor::arange(x.size(0), rows.target.options()) * static_cast<double>(x.size(1));
  const Tensor values = index_select(reshape(x, {x.numel()}), 0, first + rows.target);
  return where(rows.ignored, 0.0, -values) * rows.factor;
}

Tensor cross_entropy_of_probabilities(const Tensor& logits, const Tensor& target,
                                      const CrossEntropyOptions& options) {
  check_same("cross_entropy", logits, target);
  const auto classes = static_cast<double>(logits.size(1));
  Tensor wanted = as_rows(target);
  if (options.label_smoothing > 0) {
    wanted = wanted * (1 - options.label_smoothing) + options.label_smoothing / classes;
  }
  if (options.weight.defined()) wanted = wanted * options.weight;
  const Tensor losses = -sum(wanted * log_softmax(as_rows(logits), 1), {1});
  return reduce("cross_entropy", in_shape_of(losses, without_classes(logits)), options.reduction);
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& target, Reduction reduction,
                     int64_t ignore_index) {
  return cross_entropy(logits, target,
                       CrossEntropyOptions{.reduction = reduction, .ignore_index = ignore_index});
}

Tensor cross_entropy(const Tensor& logits_in, const Tensor& target_in,
                     const CrossEntropyOptions& options_in) {
  const Tensor logits = autocast_f32(logits_in);
  const Tensor target = autocast_f32(target_in);
  CrossEntropyOptions options = options_in;
  options.weight = autocast_f32(options.weight);
  const double smoothing = options.label_smoothing;
  check(smoothing >= 0 && smoothing <= 1, "cross_entropy",
        [&] { return str_cat("want a label_smoothing from 0 to 1, got ", smoothing); });
  if (is_floating(target.dtype()) && target.shape() == logits.shape() && logits.dim() >= 2) {
    return cross_entropy_of_probabilities(logits, target, options);
  }
  check_classes("cross_entropy", logits, target, options.weight);
  const Tensor x = as_rows(logits);
  const Tensor classes = reshape(target, {target.numel()});
  Tensor losses;
  Tensor factor;  // what each row counts in the mean
  if (!options.weight.defined() && smoothing == 0) {
    {
      const NoGrad no_grad;
      const double ignored = static_cast<double>(options.ignore_index);
      factor = to(ne(classes, ignored), logits.dtype());
    }
    losses = fused_cross_entropy(x, classes, options.ignore_index, factor);
  } else {
    const Rows rows = rows_of("cross_entropy", x, classes, options.ignore_index, options.weight);
    factor = rows.factor;
    const Tensor log_p = log_softmax(x, 1);
    losses = picked(log_p, rows);
    if (smoothing > 0) {
      const Tensor all = options.weight.defined() ? log_p * options.weight : log_p;
      const Tensor even = where(rows.ignored, 0.0, -sum(all, {1}));
      losses = losses * (1 - smoothing) + even * (smoothing / static_cast<double>(x.size(1)));
    }
  }
  if (options.reduction == Reduction::kMean) return sum(losses) / sum(factor);
  return reduce("cross_entropy", in_shape_of(losses, target.shape()), options.reduction);
}

Tensor nll_loss(const Tensor& log_probabilities_in, const Tensor& target,
                const NLLLossOptions& options_in) {
  const Tensor log_probabilities = autocast_f32(log_probabilities_in);
  NLLLossOptions options = options_in;
  options.weight = autocast_f32(options.weight);
  check_classes("nll_loss", log_probabilities, target, options.weight);
  const Tensor x = as_rows(log_probabilities);
  const Rows rows = rows_of("nll_loss", x, reshape(target, {target.numel()}), options.ignore_index,
                            options.weight);
  const Tensor losses = picked(x, rows);
  if (options.reduction == Reduction::kMean) return sum(losses) / sum(rows.factor);
  return reduce("nll_loss", in_shape_of(losses, target.shape()), options.reduction);
}

namespace {

void check_alike(std::string_view op, const Tensor& input, const Tensor& target) {
  check_same(op, input, target);
  check(is_floating(input.dtype()) && input.shape() == target.shape(), op, [&] {
    return str_cat("want a floating input and target of one shape, got ", name(input.dtype()), " ",
                   to_string(input.shape()), " and ", to_string(target.shape()));
  });
}

Tensor weighted(const Tensor& losses, const Tensor& weight) {
  return weight.defined() ? losses * weight : losses;
}

}  // namespace

Tensor mse_loss(const Tensor& input_in, const Tensor& target_in, Reduction reduction) {
  const Tensor input = autocast_f32(input_in);
  const Tensor target = autocast_f32(target_in);
  check_alike("mse_loss", input, target);
  return reduce("mse_loss", square(input - target), reduction);
}

Tensor l1_loss(const Tensor& input_in, const Tensor& target_in, Reduction reduction) {
  const Tensor input = autocast_f32(input_in);
  const Tensor target = autocast_f32(target_in);
  check_alike("l1_loss", input, target);
  return reduce("l1_loss", abs(input - target), reduction);
}

Tensor smooth_l1_loss(const Tensor& input_in, const Tensor& target_in, Reduction reduction,
                      double beta) {
  const Tensor input = autocast_f32(input_in);
  const Tensor target = autocast_f32(target_in);
  check_alike("smooth_l1_loss", input, target);
  check(beta >= 0, "smooth_l1_loss",
        [&] { return str_cat("want a beta of 0 and more, got ", beta); });
  if (beta == 0) return l1_loss(input, target, reduction);
  const Tensor d = abs(input - target);
  return reduce("smooth_l1_loss", where(lt(d, beta), square(d) * (0.5 / beta), d - 0.5 * beta),
                reduction);
}

Tensor huber_loss(const Tensor& input_in, const Tensor& target_in, Reduction reduction,
                  double delta) {
  const Tensor input = autocast_f32(input_in);
  const Tensor target = autocast_f32(target_in);
  check_alike("huber_loss", input, target);
  check(delta > 0, "huber_loss", [&] { return str_cat("want a delta above 0, got ", delta); });
  const Tensor d = abs(input - target);
  return reduce("huber_loss", where(lt(d, delta), square(d) * 0.5, (d - 0.5 * delta) * delta),
                reduction);
}

Tensor binary_cross_entropy(const Tensor& input_in, const Tensor& target_in, Reduction reduction,
                            const Tensor& weight) {
  const Tensor input = autocast_f32(input_in);
  const Tensor target = autocast_f32(target_in);
  constexpr double kLowest = -100;
  check_alike("binary_cross_entropy", input, target);
  Tensor losses;
  {
    const NoGrad no_grad;
    if (input.numel() > 0) {
      const double low = min(input).item();
      const double high = max(input).item();
      check(low >= 0 && high <= 1, "binary_cross_entropy", [&] {
        return str_cat("want probabilities from 0 to 1, got values from ", low, " to ", high,
                       "; logits go to binary_cross_entropy_with_logits");
      });
    }
    losses =
        -(target * maximum(log(input), kLowest) + (1 - target) * maximum(log1p(-input), kLowest));
  }
  const auto backward = [input = Saved(input), target = Saved(target)](const Tensor& g) {
    const Tensor x = input.get();
    const Tensor t = target.get();
    Tensors out(2);
    if (wants_gradient(0)) out[0] = g * (x - t) / maximum(x * (1 - x), 1e-12);
    if (wants_gradient(1)) {
      out[1] = g * (maximum(log1p(-x), kLowest) - maximum(log(x), kLowest));
    }
    return out;
  };
  losses = record("binary_cross_entropy", losses, {input, target}, backward);
  return reduce("binary_cross_entropy", weighted(losses, weight), reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits_in, const Tensor& target_in,
                                        const BCEWithLogitsOptions& options) {
  const Tensor logits = autocast_f32(logits_in);
  const Tensor target = autocast_f32(target_in);
  check_alike("binary_cross_entropy_with_logits", logits, target);
  // softplus(-x) is -log sigmoid(x), and softplus(x) is -log(1 - sigmoid(x)): sums of small numbers
  // where the loss is small.
  const Tensor wanted = options.pos_weight.defined() ? target * options.pos_weight : target;
  const Tensor losses = wanted * softplus(-logits) + (1 - target) * softplus(logits);
  return reduce("binary_cross_entropy_with_logits", weighted(losses, options.weight),
                options.reduction);
}

Tensor kl_div(const Tensor& input_in, const Tensor& target_in, Reduction reduction,
              bool log_target) {
  const Tensor input = autocast_f32(input_in);
  const Tensor target = autocast_f32(target_in);
  check_alike("kl_div", input, target);
  const auto reduced = [&](const Tensor& losses) {
    if (reduction != Reduction::kBatchMean) return reduce("kl_div", losses, reduction);
    check(losses.dim() > 0, "kl_div", "want rows for kBatchMean, got a scalar");
    return sum(losses) / static_cast<double>(losses.size(0));
  };
  if (log_target) return reduced(exp(target) * (target - input));
  const Tensor zero = eq(target, 0);
  const Tensor entropy = where(zero, 0.0, target * log(where(zero, 1.0, target)));
  return reduced(entropy - target * input);
}

}  // namespace lockstep
