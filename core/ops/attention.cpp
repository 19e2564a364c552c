#include "lockstep/core/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "lockstep/core/autocast.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/matmul.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/core/ops/softmax.h"
#include "lockstep/kernels/attention.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/philox.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

constexpr const char* kOp = "scaled_dot_product_attention";

DType lane_dtype_of(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

Shape leading(const Tensor& x) { return Shape(x.shape().begin(), x.shape().end() - 2); }

Shape joined(Shape front, std::initializer_list<int64_t> back) {
  front.insert(front.end(), back.begin(), back.end());
  return front;
}

// Not initialised, with the dimensions in memory in the order of x's: heads that were split from
// one matrix of rows are then put back into one by a view.
Tensor empty_in_order_of(const Tensor& x, const Shape& shape) {
  const auto step_of = [&](size_t d) {  // dimensions that x repeats are the outermost
    return x.strides()[d] == 0 ? std::numeric_limits<int64_t>::max() : x.strides()[d];
  };
  std::vector<size_t> order(shape.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return step_of(a) < step_of(b); });
  Tensor out = Tensor::empty(shape, x.options());
  int64_t step = 1;
  for (size_t d : order) {
    out.impl()->strides[d] = step;
    step *= shape[d];
  }
  return out;
}

void check_operands(const Tensor& q, const Tensor& k, const Tensor& v,
                    const AttentionOptions& options) {
  check_same(kOp, q, k);
  check_same(kOp, q, v);
  check(is_floating(q.dtype()) && q.dim() >= 2 && k.dim() >= 2 && v.dim() >= 2 &&
            q.size(-1) == k.size(-1) && k.size(-2) == v.size(-2),
        kOp, [&] {
          return str_cat("want floating q (…, L, E), k (…, S, E) and v (…, S, D), got ",
                         name(q.dtype()), " ", to_string(q.shape()), ", ", to_string(k.shape()),
                         " and ", to_string(v.shape()));
        });
  check(options.dropout_p >= 0 && options.dropout_p <= 1, kOp,
        [&] { return str_cat("want a dropout_p from 0 to 1, got ", options.dropout_p); });
  if (!options.mask.defined()) return;
  const Tensor& mask = options.mask;
  check(mask.device() == q.device() && (mask.dtype() == DType::kBool || is_floating(mask.dtype())),
        kOp, [&] {
          return str_cat("want a mask of dtype bool or a floating one on the device of q, got ",
                         name(mask.dtype()), " on ", mask.device().name());
        });
}

// A mask as what is added to the scores.
Tensor additive(const Tensor& mask, DType dtype) {
  if (mask.dtype() != DType::kBool) return to(mask, dtype);
  const Tensor zero = Tensor::scalar(0, {dtype, mask.device()});
  return where(mask, zero, -std::numeric_limits<double>::infinity());
}

// One call, its operands of one leading shape.
struct Context {
  Saved q;
  Saved k;
  Saved v;
  Saved bias;  // (…, L, S), expanded, in the lane dtype; undefined for none
  Saved out;
  Saved lse;
  std::shared_ptr<const kernels::AttentionOptions> options;  // drawn anew when a graph is replayed
};

std::optional<View> view_of(const Tensor& x) {
  return x.defined() ? std::optional(x.view()) : std::nullopt;
}

// Calls launches(), which read `o`; at each replay of a graph again where there is dropout.
template <class Launches>
void with_dropout(const kernels::AttentionOptions& o, Launches launches) {
  if (o.dropout_p == 0) return launches();
  renewed(std::move(launches));
}

// The weights, in differentiable ops: (…, L, S) in the dtype of q, before dropout.
Tensor weights_of(const Tensor& q, const Tensor& k, const Tensor& bias,
                  const kernels::AttentionOptions& o) {
  Tensor scores = matmul(q, transpose(k, -2, -1)) * o.scale;
  if (bias.defined()) scores = scores + bias;
  const double lowest = -std::numeric_limits<double>::infinity();
  if (o.is_causal) {
    const TensorOptions options = {DType::kI64, q.device()};
    const Tensor row = reshape(Tensor::arange(q.size(-2), options), {q.size(-2), 1});
    scores = where(le(Tensor::arange(k.size(-2), options), row), scores, lowest);
  }
  if (!bias.defined() || k.size(-2) == 0) return softmax(scores, -1);
  // Queries that see nothing: constants in, zeros out, so that no NaN meets their gradients.
  Tensor blind;
  {
    const NoGrad no_grad;
    blind = eq(max(scores, {-1}, true), lowest);
  }
  return where(blind, 0.0, softmax(where(blind, 0.0, scores), -1));
}

// 1 / (1 - p) for weights that are kept, else 0; undefined without dropout.
Tensor keep_factors(const Tensor& weights,
                    const std::shared_ptr<const kernels::AttentionOptions>& o) {
  if (o->dropout_p == 0) return Tensor();
  Tensor keep = Tensor::empty(weights.shape(), {DType::kF32, weights.device()});
  renewed([o, view = keep.view()] {
    launch<kernels::Bernoulli>(view.device, view, 1 - o->dropout_p, o->seed, o->offset);
  });
  return o->dropout_p < 1 ? to(keep, weights.dtype()) * (1 / (1 - o->dropout_p))
                          : to(keep, weights.dtype());
}

Tensors recorded_backward(const Context& c, const Tensor& gradient) {
  const Tensor input = c.q.get();
  const DType lane = lane_dtype_of(input.dtype());
  const Tensor q = to(input, lane);
  const Tensor k = to(c.k.get(), lane);
  const Tensor v = to(c.v.get(), lane);
  const Tensor g = to(gradient, lane);
  const Tensor weights = weights_of(q, k, c.bias.get(), *c.options);
  const Tensor keep = keep_factors(weights, c.options);
  Tensor slope = matmul(g, transpose(v, -2, -1));
  if (keep.defined()) slope = slope * keep;
  const Tensor scores = weights * (slope - sum(slope * weights, {-1}, true)) * c.options->scale;
  const Tensor kept = keep.defined() ? weights * keep : weights;
  const auto back = [&](const Tensor& x) { return to(x, input.dtype()); };
  return {back(matmul(scores, k)), back(matmul(transpose(scores, -2, -1), q)),
          back(matmul(transpose(kept, -2, -1), g))};
}

Tensors fused_backward(const Context& c, const Tensor& g) {
  const Tensor q = c.q.get();
  const Tensor k = c.k.get();
  const Tensor v = c.v.get();
  Tensors out = {empty_in_order_of(q, q.shape()), empty_in_order_of(k, k.shape()),
                 empty_in_order_of(v, v.shape())};
  with_dropout(*c.options,
               [o = c.options, g = g.view(), q = q.view(), k = k.view(), v = v.view(),
                bias = view_of(c.bias.get()), made = c.out.get().view(), lse = c.lse.get().view(),
                gq = out[0].view(), gk = out[1].view(), gv = out[2].view()] {
                 launch<kernels::AttentionBackward>(q.device, g, q, k, v, bias ? &*bias : nullptr,
                                                    *o, made, lse, gq, gk, gv);
               });
  return out;
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& query_in, const Tensor& key_in,
                                    const Tensor& value_in, const AttentionOptions& options) {
  const Tensor query = autocast_low(query_in);
  const Tensor key = autocast_low(key_in);
  const Tensor value = autocast_low(value_in);
  check_operands(query, key, value, options);
  const Shape batch =
      broadcast_shapes(leading(query), broadcast_shapes(leading(key), leading(value), kOp), kOp);
  const Tensor q = expand(query, joined(batch, {query.size(-2), query.size(-1)}));
  const Tensor k = expand(key, joined(batch, {key.size(-2), key.size(-1)}));
  const Tensor v = expand(value, joined(batch, {value.size(-2), value.size(-1)}));
  const DType lane = lane_dtype_of(q.dtype());
  const Shape weights_shape = joined(batch, {q.size(-2), k.size(-2)});

  const auto o = std::make_shared<kernels::AttentionOptions>();
  o->scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  o->is_causal = options.is_causal;
  o->dropout_p = options.dropout_p;
  if (o->dropout_p > 0) {
    renewed([o, generator = options.generator, count = numel(weights_shape, kOp)] {
      Generator& drawn = generator ? *generator : default_generator();
      o->seed = drawn.seed;
      o->offset = drawn.take(count);
    });
  }
  Tensor bias;
  if (options.mask.defined()) bias = expand(additive(options.mask, lane), weights_shape);

  if (grad_enabled() && bias.defined() && bias.requires_grad()) {
    Tensor weights = weights_of(to(q, lane), to(k, lane), bias, *o);
    if (const Tensor keep = keep_factors(weights, o); keep.defined()) weights = weights * keep;
    return to(matmul(weights, to(v, lane)), q.dtype());
  }
  Tensor out = empty_in_order_of(q, joined(batch, {q.size(-2), v.size(-1)}));
  const Tensor lse = Tensor::empty(joined(batch, {q.size(-2)}), {lane, q.device()});
  with_dropout(*o, [o, q = q.view(), k = k.view(), v = v.view(), bias = view_of(bias),
                    out = out.view(), lse = lse.view()] {
    launch<kernels::Attention>(q.device, q, k, v, bias ? &*bias : nullptr, *o, out, lse);
  });
  const Context context = {q, k, v, bias, Saved::result(out), lse, o};
  return record(kOp, out, {q, k, v}, [context](const Tensor& g) {
    return grad_enabled() ? recorded_backward(context, g) : fused_backward(context, g);
  });
}

}  // namespace lockstep
