#include "lockstep/nn/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "layers.h"
#include "lockstep/core/gradcheck.h"
#include "lockstep/core/ops.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

constexpr std::pair<Reduction, const char*> kReductions[] = {
    {Reduction::kNone, "none"}, {Reduction::kMean, "mean"}, {Reduction::kSum, "sum"}};

Tensor classes() { return Tensor::from<int64_t>({2, 0, -100, 4, 4, 1}, {6}); }
Tensor class_weight() { return abs(golden::wave(3, {5})) + 0.1; }

// Holds loss(x, reduction) to PyTorch's numbers, for x = wave(1, shape).
void expect_loss(const std::string& name, const Shape& shape,
                 const std::function<Tensor(const Tensor& x, Reduction)>& loss) {
  for (const auto& [reduction, label] : kReductions) {
    const Tensor x = golden::leaf(1, shape);
    golden::expect_two_orders(name + "." + label, loss(x, reduction), {{"x", x}});
  }
}

// The same for loss(x, t, reduction) of two leaves.
void expect_loss_of_two(
    const std::string& name, bool second,
    const std::function<Tensor(const Tensor&, const Tensor&, Reduction)>& loss) {
  for (const auto& [reduction, label] : kReductions) {
    const Tensor x = golden::leaf(1, {6, 5});
    const Tensor t = golden::leaf(2, {6, 5});
    const auto expect = second ? golden::expect_two_orders : golden::expect_gradients;
    expect(name + "." + label, loss(x, t, reduction), {{"x", x}, {"t", t}});
  }
}

TEST(Loss, CrossEntropyHasPyTorchsValuesAndGradients) {
  for (const auto& [reduction, name] : kReductions) {
    const Tensor x = golden::leaf(1, {6, 5});
    const CrossEntropyLoss loss{.reduction = reduction};
    golden::expect_gradients(std::string("cross_entropy.") + name, loss(x, classes()), {{"x", x}});
  }
  expect_loss("cross_entropy.weight", {6, 5}, [](const Tensor& x, Reduction reduction) {
    return CrossEntropyLoss{.reduction = reduction, .weight = class_weight()}(x, classes());
  });
  expect_loss("cross_entropy.smooth", {6, 5}, [](const Tensor& x, Reduction reduction) {
    const CrossEntropyLoss loss{
        .reduction = reduction, .label_smoothing = 0.2, .weight = class_weight()};
    return loss(x, classes());
  });
  expect_loss("cross_entropy.images", {2, 4, 3}, [](const Tensor& x, Reduction reduction) {
    const CrossEntropyLoss loss{.reduction = reduction, .label_smoothing = 0.1};
    return loss(x, Tensor::from<int64_t>({1, 3, -100, 2, 0, 3}, {2, 3}));
  });
}

TEST(Loss, CrossEntropyTakesProbabilities) {
  expect_loss_of_two("cross_entropy.probabilities", true,
                     [](const Tensor& x, const Tensor& t, Reduction reduction) {
                       const CrossEntropyLoss loss{.reduction = reduction,
                                                   .label_smoothing = 0.2,
                                                   .weight = class_weight()};
                       return loss(x, t);
                     });
}

TEST(Loss, CrossEntropyIgnoresTheIndexItIsTold) {
  const Tensor x = golden::wave(1, {3, 5});
  for (const double smoothing : {0.0, 0.1}) {
    const CrossEntropyLoss loss{
        .reduction = Reduction::kNone, .ignore_index = 4, .label_smoothing = smoothing};
    const std::vector<double> rows =
        loss(x, Tensor::from<int64_t>({4, 1, 4}, {3})).to_vector<double>();
    EXPECT_EQ(rows[0], 0);
    EXPECT_GT(rows[1], 0);
    EXPECT_EQ(rows[2], 0);
  }
}

TEST(Loss, CrossEntropyOfImagesIsThatOfTheirPixels) {
  const Tensor x = golden::wave(1, {2, 5, 3});
  const Tensor target = Tensor::from<int64_t>({1, 3, -100, 2, 0, 4}, {2, 3});
  const Tensor rows = reshape(permute(x, {0, 2, 1}), {6, 5});
  const Tensor want = cross_entropy(rows, reshape(target, {6}), Reduction::kNone);
  const Tensor got = cross_entropy(x, target, Reduction::kNone);
  EXPECT_EQ(got.shape(), target.shape());
  EXPECT_EQ(got.to_vector<double>(), want.to_vector<double>());
}

TEST(Loss, NegativeLogLikelihoodHasPyTorchsValuesAndGradients) {
  expect_loss("nll_loss", {6, 5}, [](const Tensor& x, Reduction reduction) {
    return NLLLoss{.reduction = reduction, .weight = class_weight()}(x, classes());
  });
}

TEST(Loss, AnIgnoredRowMayHoldAnything) {
  Tensor x = golden::wave(1, {3, 4});
  x.select(0, 1).fill_(-std::numeric_limits<double>::infinity());
  x.set_requires_grad();
  const Tensor target = Tensor::from<int64_t>({2, -100, 3}, {3});
  const Tensor loss = nll_loss(x, target);
  EXPECT_TRUE(std::isfinite(loss.item()));
  loss.backward();
  EXPECT_EQ(x.grad().to_vector<double>()[4], 0);
}

TEST(Loss, MeanSquaredErrorHasPyTorchsValuesAndGradients) {
  for (const auto& [reduction, name] : kReductions) {
    const Tensor x = golden::leaf(1, {6, 5});
    const MSELoss loss{.reduction = reduction};
    golden::expect_gradients(std::string("mse_loss.") + name, loss(x, golden::wave(2, {6, 5})),
                             {{"x", x}});
  }
}

TEST(Loss, AbsoluteAndSmoothErrorsHavePyTorchsValuesAndGradients) {
  expect_loss_of_two("l1_loss", false, [](const Tensor& x, const Tensor& t, Reduction reduction) {
    return L1Loss{reduction}(x, t);
  });
  expect_loss_of_two("smooth_l1_loss", false,
                     [](const Tensor& x, const Tensor& t, Reduction reduction) {
                       return SmoothL1Loss{reduction, 0.7}(x, t);
                     });
  expect_loss_of_two("huber_loss", false,
                     [](const Tensor& x, const Tensor& t, Reduction reduction) {
                       return HuberLoss{reduction, 0.7}(x, t);
                     });
  const Tensor x = golden::wave(1, {7});
  EXPECT_EQ(smooth_l1_loss(x, -x, Reduction::kMean, 0).item(), l1_loss(x, -x).item());
}

TEST(Loss, BinaryCrossEntropyHasPyTorchsValuesAndGradients) {
  const Tensor target = sigmoid(golden::wave(2, {6, 5}));
  // In second order PyTorch adds 1e-12 to a divisor that is exact here.
  for (const auto& [reduction, label] : kReductions) {
    const Tensor x = golden::leaf(1, {6, 5});
    const Tensor loss = BCELoss{reduction, class_weight()}(sigmoid(x), target);
    golden::expect_gradients(std::string("bce_loss.") + label, loss, {{"x", x}});
  }
  const auto composed = [&](const Tensors& x) {
    return binary_cross_entropy(sigmoid(x[0]), target);
  };
  EXPECT_EQ(gradcheck(composed, {golden::leaf(1, {6, 5})}), "");
  expect_loss("bce_with_logits", {6, 5}, [&](const Tensor& x, Reduction reduction) {
    const BCEWithLogitsLoss loss{reduction, abs(golden::wave(4, {6, 5})), class_weight()};
    return loss(3 * x, target);
  });
}

TEST(Loss, BinaryCrossEntropyIsFiniteAtTheEnds) {
  const Tensor x = Tensor::from<float>({0, 1, 0, 1}, {4}).set_requires_grad();
  const Tensor t = Tensor::from<float>({0, 1, 1, 0}, {4});
  const Tensor loss = binary_cross_entropy(x, t, Reduction::kNone);
  EXPECT_EQ(loss.to_vector<float>(), (std::vector<float>{0, 0, 100, 100}));
  sum(loss).backward();
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{0, 0, -1e12f, 1e12f}));
}

TEST(Loss, LogitsKeepTheDigitsThatProbabilitiesLose) {
  const Tensor x = Tensor::from<float>({60, -60, 1e30f, -1e30f}, {4});
  const Tensor t = Tensor::from<float>({1, 0, 1, 0}, {4});
  const std::vector<float> loss =
      binary_cross_entropy_with_logits(x, t, {.reduction = Reduction::kNone}).to_vector<float>();
  EXPECT_NEAR(loss[0] / std::exp(-60.0), 1, 1e-5);
  EXPECT_NEAR(loss[1] / std::exp(-60.0), 1, 1e-5);
  EXPECT_EQ(loss[2], 0);
  EXPECT_EQ(loss[3], 0);
}

TEST(Loss, DivergenceHasPyTorchsValuesAndGradients) {
  expect_loss_of_two("kl_div", true, [](const Tensor& x, const Tensor& t, Reduction reduction) {
    return KLDivLoss{reduction}(log_softmax(x, 1), softmax(t, 1));
  });
  expect_loss_of_two("kl_div.log", true, [](const Tensor& x, const Tensor& t, Reduction reduction) {
    return KLDivLoss{reduction, true}(log_softmax(x, 1), log_softmax(t, 1));
  });
  EXPECT_EQ(kl_div(Tensor::ones({2}), Tensor::zeros({2})).item(), 0);
  const Tensor x = log_softmax(golden::leaf(1, {3, 5}), 1);
  const Tensor t = softmax(golden::leaf(2, {3, 5}), 1);
  EXPECT_DOUBLE_EQ(kl_div(x, t, Reduction::kBatchMean).item(),
                   kl_div(x, t, Reduction::kSum).item() / 3);
  EXPECT_THAT(error_of([&] { mse_loss(x, t, Reduction::kBatchMean); }), HasSubstr("[mse_loss]"));
}

TEST(Loss, MeansOfNothingAreNan) {
  const Tensor none = Tensor::ones({0, 3});
  EXPECT_TRUE(std::isnan(mse_loss(none, none).item()));
  EXPECT_EQ(l1_loss(none, none, Reduction::kSum).item(), 0);
  const Tensor ignored = Tensor::from<int64_t>({-100, -100}, {2});
  EXPECT_TRUE(std::isnan(cross_entropy(Tensor::ones({2, 3}), ignored).item()));
  EXPECT_TRUE(std::isnan(nll_loss(Tensor::ones({2, 3}), ignored).item()));
}

TEST(Loss, ErrorsNameTheLossAndWhatCame) {
  const Tensor x = Tensor::ones({2, 3});
  const Tensor target = Tensor::from<int64_t>({0, 3}, {2});
  EXPECT_THAT(error_of([&] { cross_entropy(x, target); }), HasSubstr("row 1 has 3"));
  EXPECT_THAT(error_of([&] { nll_loss(x, target); }), HasSubstr("[nll_loss]"));
  EXPECT_THAT(error_of([&] { nll_loss(x, target); }), HasSubstr("row 1 has 3"));
  EXPECT_THAT(error_of([&] { cross_entropy(x, Tensor::ones({2, 4})); }), HasSubstr("(2, 4)"));
  EXPECT_THAT(error_of([&] { cross_entropy(x, target, {.label_smoothing = 2}); }), HasSubstr("2"));
  EXPECT_THAT(error_of([&] { cross_entropy(x, target, {.weight = Tensor::ones({2})}); }),
              HasSubstr("(3), got (2)"));
  EXPECT_THAT(error_of([&] { mse_loss(x, Tensor::ones({3})); }), HasSubstr("[mse_loss]"));
  EXPECT_THAT(error_of([&] { l1_loss(x, Tensor::ones({3, 2})); }), HasSubstr("(3, 2)"));
  EXPECT_THAT(error_of([&] { binary_cross_entropy(x * 1.5, x); }), HasSubstr("1.5"));
  EXPECT_THAT(error_of([&] { huber_loss(x, x, Reduction::kMean, 0); }), HasSubstr("delta"));
}

}  // namespace
}  // namespace lockstep::nn
