#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"

// One table of ops, which drives the tests of values, gradients, dtypes, strides, broadcasting,
// empty and 0-dimensional tensors, special numbers and repeatability. An entry is a function of
// some inputs; tests/golden/make_ops.py has the same entries, by the same names, in PyTorch.
namespace lockstep::op_table {

// Values spread over [low, high] without repeats, in an order that is not sorted. f64, a leaf.
inline Tensor sample(const Shape& shape, double low = -1.5, double high = 1.5, int salt = 0) {
  Tensor x = Tensor::empty(shape, {DType::kF64});
  const int64_t n = x.numel();
  for (int64_t i = 0; i < n; ++i) {
    const double u =
        std::fmod(0.5 + 0.6180339887498949 * static_cast<double>(i + 1 + 17 * salt), 1);
    x.data<double>()[i] = low + (high - low) * u;
  }
  return x.set_requires_grad();
}

// Fixed weights that turn a tensor into one number without symmetries that could hide an error.
inline Tensor weights_like(const Tensor& y) {
  Tensor w = Tensor::empty(y.shape(), {DType::kF64});
  for (int64_t i = 0; i < y.numel(); ++i) {
    w.data<double>()[i] = std::sin(1.0 + 0.7 * static_cast<double>(i)) + 0.3;
  }
  return w.to(y.device());
}

using Function = std::function<Tensor(const Tensors&)>;

enum class Kind {
  kElementwise,  // of one input, or of two that broadcast
  kReduction,    // of one input, whose last dimension goes
  kOther,
};

struct Case {
  std::string name;
  Function function;
  Tensors inputs;
  Kind kind = Kind::kOther;
  double loose = 1;            // how many roundings more than usual 16-bit results may be off
  bool golden = true;          // whether make_ops.py has it
  std::vector<Shape> empty{};  // input shapes without elements, and what comes out
  Shape empty_result{};
};

// For an entry of designated fields: add(all, {.name = …}).
inline Case elementwise(std::string name, Function f, Tensors inputs) {
  return {std::move(name), std::move(f), std::move(inputs), Kind::kElementwise};
}

inline void add_elementwise(std::vector<Case>& all) {
  const auto unary = [&all](std::string name, Tensor (*f)(const Tensor&), double low = -1.7) {
    all.push_back(elementwise(std::move(name), [f](const Tensors& x) { return f(x[0]); },
                              {sample({3, 5}, low, 1.9)}));
  };
  const auto binary = [&all](const std::string& name,
                             const std::function<Tensor(const Tensor&, const Tensor&)>& f) {
    const Function function = [f](const Tensors& x) { return f(x[0], x[1]); };
    all.push_back(
        elementwise(name, function, {sample({3, 5}, 0.5, 2), sample({3, 5}, 0.7, 2.2, 1)}));
    all.push_back(elementwise(name + "_broadcast", function,
                              {sample({3, 1, 2}, 0.5, 2), sample({5, 1}, 0.7, 2.2, 1)}));
  };
#define LOCKSTEP_CASE(Op, function) unary(#function, &lockstep::function, kernels::Op::kLow);
  LOCKSTEP_UNARY_OPS(LOCKSTEP_CASE)
#undef LOCKSTEP_CASE
  unary("leaky_relu", &lockstep::leaky_relu);
  unary("clamp", [](const Tensor& x) { return clamp(x, -0.7, 0.9); });
  unary("clamp_min", [](const Tensor& x) { return clamp_min(x, -0.7); });
  unary("clamp_max", [](const Tensor& x) { return clamp_max(x, 0.9); });
  unary("masked_fill", [](const Tensor& x) { return masked_fill(x, gt(x, 0.2), -1); });
  unary("isnan", &lockstep::isnan);
  unary("isinf", &lockstep::isinf);
  unary("isfinite", &lockstep::isfinite);

  using Two = Tensor (*)(const Tensor&, const Tensor&);
#define LOCKSTEP_CASE(Op, function) \
  if (std::string(#function) != "leaky_relu") binary(#function, Two(&lockstep::function));
  LOCKSTEP_BINARY_OPS(LOCKSTEP_CASE)
  LOCKSTEP_COMPARE_OPS(LOCKSTEP_CASE)
#undef LOCKSTEP_CASE
  binary("prelu", Two(&lockstep::leaky_relu));
  binary("where", [](const Tensor& a, const Tensor& b) { return where(gt(a, b), a * a, b); });
}

inline void add_reductions(std::vector<Case>& all) {
  const Tensor block = sample({3, 4, 5});
  const auto add = [&](std::string name, Function f, const Tensor& input, double loose = 1) {
    all.push_back({std::move(name), std::move(f), {input}, Kind::kOther, loose});
  };
  add(
      "sum", [](const Tensors& x) { return sum(x[0]); }, sample({3, 4}), 4);
  add(
      "sum_dims",
      [](const Tensors& x) {
        return sum(exp(x[0]), {0, 2});
      },
      block, 4);
  add(
      "mean", [](const Tensors& x) { return mean(exp(x[0]), {-1}, true); }, block);
  add(
      "var",
      [](const Tensors& x) {
        return var(x[0], {0, 2});
      },
      block);
  add(
      "var_biased", [](const Tensors& x) { return var(x[0], {1}, 0, true); }, block);
  add(
      "std",
      [](const Tensors& x) {
        return lockstep::std(x[0], {1, 2});
      },
      block);
  add(
      "prod", [](const Tensors& x) { return prod(x[0], {1}); }, block);
  const double zeros[] = {2, 0, 3, -1.5, 0.5, 0, 2, 0, 1, 3, 1, -2, 0.5, 4, 1};
  add(
      "prod_zeros", [](const Tensors& x) { return prod(x[0], {1}); },
      Tensor::from(std::span<const double>(zeros), {3, 5}).set_requires_grad());
  add(
      "prod_all", [](const Tensors& x) { return prod(x[0]); }, sample({7}, 0.5, 1.5));
  add(
      "max",
      [](const Tensors& x) {
        return max(exp(x[0]), {1, 2});
      },
      block);
  add(
      "min", [](const Tensors& x) { return min(exp(x[0]), {0}); }, block);
  add(
      "argmax", [](const Tensors& x) { return argmax(x[0], 1); }, block);
  add(
      "argmin", [](const Tensors& x) { return argmin(x[0]); }, block);
  add(
      "max_with_indices",
      [](const Tensors& x) {
        const Extremes top = max_with_indices(x[0], 1);
        return exp(top.values) * to(top.indices, x[0].dtype());
      },
      block);
  add(
      "min_with_indices",
      [](const Tensors& x) {
        const Extremes least = min_with_indices(x[0], -1, true);
        return exp(least.values) * to(least.indices, x[0].dtype());
      },
      block);
  add(
      "norm",
      [](const Tensors& x) {
        return norm(x[0], 2, {0, 1});
      },
      block);
  add(
      "norm_1", [](const Tensors& x) { return norm(x[0], 1, {2}); }, block);
  add(
      "norm_3", [](const Tensors& x) { return norm(x[0], 3, {1}); }, block);
  add(
      "norm_max", [](const Tensors& x) { return norm(x[0], INFINITY, {1}); }, block);
  add(
      "logsumexp",
      [](const Tensors& x) {
        return logsumexp(x[0], {0, 2});
      },
      block);
  add(
      "cumsum", [](const Tensors& x) { return cumsum(exp(x[0]), 1); }, block, 4);
  add(
      "softmax", [](const Tensors& x) { return softmax(x[0], 1); }, block);
  add(
      "log_softmax", [](const Tensors& x) { return log_softmax(x[0], -1); }, block);
}

// What the last dimension of special numbers (NaN, infinity, 1e30, …) becomes.
inline std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>> row_functions() {
  return {{"sum", [](const Tensor& x) { return sum(x, {1}); }},
          {"mean", [](const Tensor& x) { return mean(x, {1}); }},
          {"var", [](const Tensor& x) { return var(x, {1}); }},
          {"std", [](const Tensor& x) { return lockstep::std(x, {1}); }},
          {"prod", [](const Tensor& x) { return prod(x, {1}); }},
          {"max", [](const Tensor& x) { return max(x, {1}); }},
          {"min", [](const Tensor& x) { return min(x, {1}); }},
          {"argmax", [](const Tensor& x) { return argmax(x, 1); }},
          {"argmin", [](const Tensor& x) { return argmin(x, 1); }},
          {"logsumexp", [](const Tensor& x) { return logsumexp(x, {1}); }},
          {"cumsum", [](const Tensor& x) { return cumsum(x, 1); }},
          {"softmax", [](const Tensor& x) { return softmax(x, 1); }},
          {"log_softmax", [](const Tensor& x) { return log_softmax(x, 1); }}};
}

}  // namespace lockstep::op_table
