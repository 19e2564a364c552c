#include "lockstep/core/ops/matmul.h"

#include "lockstep/core/autocast.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/engine.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

// a (m, k) times b (k, n), or batches of these: (B, m, k) times (B, k, n).
Tensor product(const Tensor& a, const Tensor& b) {
  Shape shape = a.shape();
  shape.back() = b.shape().back();
  Tensor y = Tensor::empty(shape, a.options());
  launch<kernels::MatMul>(a.device(), a.view(), b.view(), y.view(), nullptr);
  return record("matmul", y, {a, b}, [a = Saved(a), b = Saved(b)](const Tensor& g) {
    return Tensors{wants_gradient(0) ? product(g, transpose(b.get(), -2, -1)) : Tensor(),
                   wants_gradient(1) ? product(transpose(a.get(), -2, -1), g) : Tensor()};
  });
}

// x, weight and bias of linear() as the products take them, x (rows, in).
struct LinearInputs {
  Tensor x, weight, bias;
  Shape shape;  // of the result

  LinearInputs(std::string_view op, const Tensor& x_in, const Tensor& weight_in,
               const Tensor& bias_in)
      : x(autocast_low(x_in)), weight(autocast_low(weight_in)), bias(autocast_low(bias_in)) {
    check_same(op, x, weight);
    if (bias.defined()) check_same(op, x, bias);
    check(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) &&
              (!bias.defined() || bias.shape() == Shape{weight.size(0)}),
          op, [&] {
            return str_cat("want x (…, in), weight (out, in) and bias (out), got ",
                           to_string(x.shape()), ", ", to_string(weight.shape()), " and ",
                           bias.defined() ? to_string(bias.shape()) : "no bias");
          });
    shape = x.shape();
    shape.back() = weight.size(0);
    if (x.dim() == 2) return;
    int64_t rows = 1;
    for (int64_t i = 0; i + 1 < x.dim(); ++i) rows *= x.size(i);
    x = reshape(x, {rows, x.size(-1)});
  }

  Tensor new_result() const { return Tensor::empty({x.size(0), weight.size(0)}, x.options()); }
  // A result of these rows in the shape that is wanted.
  Tensor in_shape(const Tensor& y) const { return y.shape() == shape ? y : reshape(y, shape); }
};

// For the gradient g of x weight^T + bias.
Tensors linear_gradients(const Tensor& g, const Saved& x, const Saved& weight) {
  return {wants_gradient(0) ? product(g, weight.get()) : Tensor(),
          wants_gradient(1) ? product(g.t(), x.get()) : Tensor(),
          wants_gradient(2) ? sum(g, {0}) : Tensor()};
}

Shape leading(const Shape& shape) { return Shape(shape.begin(), shape.end() - 2); }

Shape joined(Shape front, std::initializer_list<int64_t> back) {
  front.insert(front.end(), back.begin(), back.end());
  return front;
}

}  // namespace

Tensor matmul(const Tensor& a_in, const Tensor& b_in) {
  const Tensor a = autocast_low(a_in);
  const Tensor b = autocast_low(b_in);
  check_same("matmul", a, b);
  const auto message = [&] {
    return str_cat("want (…, m, k) and (…, k, n), got ", to_string(a.shape()), " and ",
                   to_string(b.shape()));
  };
  check(a.dim() > 0 && b.dim() > 0, "matmul", message);
  if (a.dim() == 1) return squeeze(matmul(unsqueeze(a, 0), b), b.dim() == 1 ? 0 : -2);
  if (b.dim() == 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  check(a.size(-1) == b.size(-2), "matmul", message);
  if (a.dim() == 2 && b.dim() == 2) return product(a, b);
  if (b.dim() == 2 && a.numel() > 0) {  // one product of all rows
    return reshape(product(reshape(a, {-1, a.size(-1)}), b),
                   joined(leading(a.shape()), {a.size(-2), b.size(-1)}));
  }
  const Shape batch = broadcast_shapes(leading(a.shape()), leading(b.shape()), "matmul");
  const int64_t count = numel(batch, "matmul");
  const auto stacked = [&](const Tensor& x) {
    const Tensor wide = expand(x, joined(batch, {x.size(-2), x.size(-1)}));
    return reshape(wide, {count, x.size(-2), x.size(-1)});
  };
  return reshape(product(stacked(a), stacked(b)), joined(batch, {a.size(-2), b.size(-1)}));
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const LinearInputs in("linear", x, weight, bias);
  const Tensor y = in.new_result();
  const View bias_view = in.bias.defined() ? in.bias.view() : View();
  launch<kernels::MatMul>(y.device(), in.x.view(), in.weight.t().detach().view(), y.view(),
                          in.bias.defined() ? &bias_view : nullptr);
  return in.in_shape(record("linear", y, {in.x, in.weight, in.bias},
                            [x = Saved(in.x), weight = Saved(in.weight)](const Tensor& g) {
                              return linear_gradients(g, x, weight);
                            }));
}

Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const LinearInputs in("linear_gelu", x, weight, bias);
  const Tensor y = in.new_result();
  const Tensor before = would_record({&in.x, &in.weight, &in.bias}) ? in.new_result() : Tensor();
  const View bias_view = in.bias.defined() ? in.bias.view() : View();
  const View before_view = before.defined() ? before.view() : View();
  launch<kernels::MatMulGelu>(y.device(), in.x.view(), in.weight.t().detach().view(), y.view(),
                              in.bias.defined() ? &bias_view : nullptr,
                              before.defined() ? &before_view : nullptr);
  return in.in_shape(record("linear_gelu", y, {in.x, in.weight, in.bias},
                            [x = Saved(in.x), weight = Saved(in.weight), bias = Saved(in.bias),
                             before = Saved(before)](const Tensor& g) {
                              if (grad_enabled()) {
                                const Tensors inputs = {x.get(), weight.get(), bias.get()};
                                const Tensor again =
                                    gelu_tanh(linear(inputs[0], inputs[1], inputs[2]));
                                return engine::partial_gradients(again, g, inputs, true);
                              }
                              const Tensor sums = before.get();
                              Tensor g_sums = before.reuse();
                              if (!g_sums.defined()) g_sums = empty_like(sums);
                              launch<kernels::UnaryVjp<kernels::GeluTanh>>(
                                  sums.device(), g.view(), sums.view(), sums.view(), g_sums.view());
                              return linear_gradients(g_sums, x, weight);
                            }));
}

}  // namespace lockstep
