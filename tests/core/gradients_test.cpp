// Gradients by differences in f64, to the second order, for every op of the table and for those
// whose golden numbers stand elsewhere; and the fused backward against the recorded one.
#include <gtest/gtest.h>

#include "lockstep/core/gradcheck.h"
#include "op_table_more.h"

namespace lockstep {
namespace {

using op_table::Case;
using op_table::sample;

std::vector<Case> more_cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, op_table::Function function, Tensors inputs) {
    all.push_back({std::move(name), std::move(function), std::move(inputs)});
  };
  add("number", [](const Tensors& x) { return 2.0 / (1.3 - x[0] * 0.2) + pow(1.7, x[0]); },
      {sample({7})});
  add("clone", [](const Tensors& x) { return exp(x[0].t().clone()); }, {sample({2, 3})});
  add("to", [](const Tensors& x) { return (x[0] * x[0]).to(DType::kF64); }, {sample({2, 3})});
  add("matmul_transposed", [](const Tensors& x) { return matmul(x[0].t(), x[1].t()); },
      {sample({4, 3}), sample({5, 4}, -1, 1, 1)});
  for (const Reduction reduction : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
    add("cross_entropy",
        [reduction](const Tensors& x) {
          return cross_entropy(x[0], Tensor::from<int64_t>({4, -100, 0}, {3}), reduction);
        },
        {sample({3, 5})});
  }
  add("mse_loss", [](const Tensors& x) { return mse_loss(x[0], x[1]); },
      {sample({3, 5}), sample({3, 5}, -1, 1, 1)});
  add("max_pool2d_channels_last",
      [](const Tensors& x) { return exp(max_pool2d(x[0].channels_last())); },
      {sample({2, 3, 5, 4})});

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
  add("layer_norm", [](const Tensors& x) { return layer_norm(x[0], {5}, x[1], x[2]); },
      {sample({3, 5}), sample({5}, 0.5, 1.5, 1), sample({5}, -1, 1, 2)});
  return all;
}

TEST(Gradients, EqualDifferencesToTheSecondOrder) {
  std::vector<Case> all = op_table::cases();
  for (Case& c : more_cases()) all.push_back(std::move(c));
  int checked = 0;
  for (const Case& c : all) {
    if (!c.function(c.inputs).requires_grad()) continue;  // comparisons and places have none
    EXPECT_EQ(gradcheck(c.function, c.inputs), "") << c.name;
    ++checked;
  }
  EXPECT_GT(checked, 140);
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
