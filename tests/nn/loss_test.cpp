#include "lockstep/nn/loss.h"

#include <gtest/gtest.h>

#include "layers.h"

namespace lockstep::nn {
namespace {

constexpr std::pair<Reduction, const char*> kReductions[] = {
    {Reduction::kNone, "none"}, {Reduction::kMean, "mean"}, {Reduction::kSum, "sum"}};

TEST(Loss, CrossEntropyHasPyTorchsValuesAndGradients) {
  const Tensor target = Tensor::from<int64_t>({2, 0, -100, 4, 4, 1}, {6});
  for (const auto& [reduction, name] : kReductions) {
    const Tensor x = golden::leaf(1, {6, 5});
    const CrossEntropyLoss loss{.reduction = reduction};
    golden::expect_gradients(std::string("cross_entropy.") + name, loss(x, target), {{"x", x}});
  }
}

TEST(Loss, CrossEntropyIgnoresTheIndexItIsTold) {
  const Tensor x = golden::wave(1, {3, 5});
  const CrossEntropyLoss loss{.reduction = Reduction::kNone, .ignore_index = 4};
  const std::vector<double> rows =
      loss(x, Tensor::from<int64_t>({4, 1, 4}, {3})).to_vector<double>();
  EXPECT_EQ(rows[0], 0);
  EXPECT_GT(rows[1], 0);
  EXPECT_EQ(rows[2], 0);
}

TEST(Loss, MeanSquaredErrorHasPyTorchsValuesAndGradients) {
  for (const auto& [reduction, name] : kReductions) {
    const Tensor x = golden::leaf(1, {6, 5});
    const MSELoss loss{.reduction = reduction};
    golden::expect_gradients(std::string("mse_loss.") + name, loss(x, golden::wave(2, {6, 5})),
                             {{"x", x}});
  }
}

}  // namespace
}  // namespace lockstep::nn
