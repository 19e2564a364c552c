// One table of ops: each is checked by differences in f64, to the second order, and its fused
// backward against the recorded one.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/gradcheck.h"
#include "lockstep/core/ops.h"

namespace lockstep {
namespace {

// Values spread over [low, high] without repeats, in an order that is not sorted.
Tensor sample(const Shape& shape, double low = -1.5, double high = 1.5, int salt = 0) {
  Tensor x = Tensor::empty(shape, {DType::kF64});
  const int64_t n = x.numel();
  for (int64_t i = 0; i < n; ++i) {
    const double u =
        std::fmod(0.5 + 0.6180339887498949 * static_cast<double>(i + 1 + 17 * salt), 1);
    x.data<double>()[i] = low + (high - low) * u;
  }
  return x.set_requires_grad();
}

struct Case {
  std::string name;
  std::function<Tensor(const Tensors&)> function;
  std::vector<Tensor> inputs;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, std::function<Tensor(const Tensors&)> function,
                       std::vector<Tensor> inputs) {
    all.push_back({std::move(name), std::move(function), std::move(inputs)});
  };

#define LOCKSTEP_CASE(Op, function)                                         \
  add(#function, [](const Tensors& x) { return lockstep::function(x[0]); }, \
      {sample({3, 5}, kernels::Op::kLow, kernels::Op::kHigh)});
  LOCKSTEP_UNARY_OPS(LOCKSTEP_CASE)
#undef LOCKSTEP_CASE
#define LOCKSTEP_CASE(Op, function)                                                            \
  add(#function, [](const Tensors& x) { return lockstep::function(x[0], x[1]); },              \
      {sample({3, 5}, 0.5, 2), sample({3, 5}, 0.7, 2.2, 1)});                                  \
  add(#function "_broadcast", [](const Tensors& x) { return lockstep::function(x[0], x[1]); }, \
      {sample({3, 1, 2}, 0.5, 2), sample({5, 1}, 0.7, 2.2, 1)});                               \
  add(#function "_number", [](const Tensors& x) { return lockstep::function(x[0], 1.3); },     \
      {sample({7}, 0.5, 2)});
  LOCKSTEP_BINARY_OPS(LOCKSTEP_CASE)
#undef LOCKSTEP_CASE

  add("where", [](const Tensors& x) { return where(gt(x[0], 0.1), x[0] * x[0], x[1]); },
      {sample({3, 5}), sample({3, 5}, -1, 1, 2)});
  add("clamp", [](const Tensors& x) { return clamp(x[0] * x[0], 0.3, 1.1); }, {sample({11})});

  add("sum", [](const Tensors& x) { return sum(x[0] * x[0]); }, {sample({3, 4})});
  add("sum_dims", [](const Tensors& x) { return sum(x[0] * x[0], {0, 2}); }, {sample({3, 4, 2})});
  add("mean", [](const Tensors& x) { return mean(x[0] * x[0], {-1}, true); }, {sample({3, 4})});
  add("var", [](const Tensors& x) { return var(x[0], {1}); }, {sample({3, 5})});
  add("max", [](const Tensors& x) { return max(x[0] * x[0], {1}); }, {sample({3, 5})});
  add("min", [](const Tensors& x) { return min(exp(x[0])); }, {sample({3, 5})});

  add("matmul", [](const Tensors& x) { return matmul(x[0], x[1]); },
      {sample({3, 4}), sample({4, 5}, -1, 1, 1)});
  add("matmul_transposed", [](const Tensors& x) { return matmul(x[0].t(), x[1].t()); },
      {sample({4, 3}), sample({5, 4}, -1, 1, 1)});
  add("matmul_batch", [](const Tensors& x) { return matmul(x[0], x[1]); },
      {sample({2, 1, 3, 4}), sample({3, 4, 2}, -1, 1, 1)});
  add("matmul_vectors", [](const Tensors& x) { return matmul(x[0], matmul(x[1], x[2])); },
      {sample({3}), sample({3, 4}, -1, 1, 1), sample({4}, -1, 1, 2)});
  add("linear", [](const Tensors& x) { return linear(x[0], x[1], x[2]); },
      {sample({2, 3, 4}), sample({5, 4}, -1, 1, 1), sample({5}, -1, 1, 2)});

  add("reshape",
      [](const Tensors& x) {
        return x[0].reshape({6, 2}) * x[1];
      },
      {sample({3, 4}), sample({6, 2}, -1, 1, 1)});
  add("permute",
      [](const Tensors& x) {
        return exp(x[0].permute({2, 0, 1})) * x[1];
      },
      {sample({2, 3, 4}), sample({4, 2, 3}, -1, 1, 1)});
  add("expand", [](const Tensors& x) { return exp(expand(x[0], {2, 3, 4})); }, {sample({3, 1})});
  add("slice", [](const Tensors& x) { return exp(slice(x[0], 1, 1, 6, 2)); }, {sample({2, 7})});
  add("select", [](const Tensors& x) { return exp(x[0].select(1, -2)); }, {sample({2, 7})});
  add("cat",
      [](const Tensors& x) {
        const Tensor parts[] = {exp(x[0]), x[1] * x[1], x[0]};
        return cat(parts, 1) * cat(parts, 1);
      },
      {sample({2, 3}), sample({2, 4}, -1, 1, 1)});
  add("stack",
      [](const Tensors& x) {
        const Tensor both[] = {exp(x[0]), x[1] * x[0]};
        return stack(both, 1);
      },
      {sample({2, 3}), sample({2, 3}, -1, 1, 1)});
  add("clone", [](const Tensors& x) { return exp(x[0].t().clone()); }, {sample({2, 3})});
  add("to", [](const Tensors& x) { return (x[0] * x[0]).to(DType::kF64); }, {sample({2, 3})});
  add("index_select",
      [](const Tensors& x) {
        return exp(index_select(x[0], 1, Tensor::from<int64_t>({2, 0, 2}, {3})));
      },
      {sample({2, 3})});
  add("index_add",
      [](const Tensors& x) {
        return exp(index_add({2, 4}, 1, Tensor::from<int64_t>({2, 0, 2}, {3}), x[0]));
      },
      {sample({2, 3})});

  add("softmax", [](const Tensors& x) { return softmax(x[0], 1); }, {sample({2, 5, 3})});
  add("log_softmax", [](const Tensors& x) { return log_softmax(x[0], -1); }, {sample({3, 5})});
  for (const Reduction reduction : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
    add("cross_entropy",
        [reduction](const Tensors& x) {
          return cross_entropy(x[0], Tensor::from<int64_t>({4, -100, 0}, {3}), reduction);
        },
        {sample({3, 5})});
  }
  add("mse_loss", [](const Tensors& x) { return mse_loss(x[0], x[1]); },
      {sample({3, 5}), sample({3, 5}, -1, 1, 1)});

  for (const int64_t groups : {1, 2}) {
    const Conv2dOptions options = {{2, 1}, {1, 2}, {1, 2}, groups};
    add("conv2d", [options](const Tensors& x) { return conv2d(x[0], x[1], x[2], options); },
        {sample({2, 4, 5, 6}), sample({6, 4 / groups, 3, 2}, -1, 1, 1), sample({6}, -1, 1, 2)});
  }
  add("max_pool2d",
      [](const Tensors& x) {
        return exp(max_pool2d(x[0], {{3, 2}, {2, 1}, {1, 0}}));
      },
      {sample({2, 3, 5, 4})});
  add("max_pool2d_channels_last",
      [](const Tensors& x) { return exp(max_pool2d(x[0].channels_last())); },
      {sample({2, 3, 5, 4})});
  for (const bool count_include_pad : {true, false}) {
    add("avg_pool2d",
        [count_include_pad](const Tensors& x) {
          return exp(avg_pool2d(x[0], {{3, 2}, {2, 1}, {1, 1}, {1, 1}, count_include_pad}));
        },
        {sample({2, 3, 5, 4})});
  }

  const auto batch_norm_case = [&](std::string name, const Shape& shape, bool training,
                                   bool channels_last) {
    add(std::move(name),
        [training, channels_last](const Tensors& x) {
          BatchNormArguments a;
          a.weight = x[1];
          a.bias = x[2];
          a.training = training;
          if (!training) {
            a.running_mean = sample({x[1].size(0)}, -0.2, 0.2, 3).detach();
            a.running_var = sample({x[1].size(0)}, 0.5, 2, 4).detach();
          }
          return batch_norm(channels_last ? x[0].channels_last() : x[0], a);
        },
        {sample(shape), sample({shape[1]}, 0.5, 1.5, 1), sample({shape[1]}, -1, 1, 2)});
  };
  batch_norm_case("batch_norm_2d", {5, 3}, true, false);
  batch_norm_case("batch_norm_3d", {3, 2, 4}, true, false);
  batch_norm_case("batch_norm_4d", {2, 3, 2, 3}, true, false);
  batch_norm_case("batch_norm_channels_last", {2, 3, 2, 3}, true, true);
  batch_norm_case("batch_norm_5d", {2, 2, 2, 1, 3}, true, false);
  batch_norm_case("batch_norm_eval", {2, 3, 2, 3}, false, false);
  add("batch_norm_transposed", [](const Tensors& x) { return batch_norm(x[0].t(), {}) * x[1]; },
      {sample({3, 5}), sample({5, 3}, -1, 1, 1)});
  add("layer_norm", [](const Tensors& x) { return layer_norm(x[0], x[1], x[2]); },
      {sample({3, 5}), sample({5}, 0.5, 1.5, 1), sample({5}, -1, 1, 2)});
  return all;
}

TEST(Gradients, EqualDifferencesToTheSecondOrder) {
  for (const Case& c : cases()) EXPECT_EQ(gradcheck(c.function, c.inputs), "") << c.name;
}

TEST(Gradcheck, FindsAWrongGradient) {
  const auto wrong = [](const Tensors& x) {
    const Tensor y = exp(x[0].detach());
    return record("wrong", y, {x[0]},
                  [y = Saved::result(y)](const Tensor& g) { return Tensors{g * y.get() * 1.01}; });
  };
  EXPECT_NE(gradcheck(wrong, {sample({3})}), "");
}

}  // namespace
}  // namespace lockstep
