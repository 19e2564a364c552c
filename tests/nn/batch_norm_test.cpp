#include "lockstep/nn/batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/core/gradcheck.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

// Three training steps and an evaluation, as make_golden.py does them.
template <class Norm>
void expect_golden(const std::string& name, const Shape& shape, std::optional<double> momentum) {
  Norm norm(shape[1], {.eps = 1e-3, .momentum = momentum});
  norm.to(DType::kF64);
  assign(norm.weight, golden::wave(5, {shape[1]}) + 1);
  assign(norm.bias, golden::wave(6, {shape[1]}));
  norm(golden::leaf(10, shape));
  norm(golden::leaf(11, shape));
  Tensor x = golden::leaf(12, shape);
  golden::expect_gradients(name + ".train", norm(x),
                           {{"x", x}, {"weight", norm.weight}, {"bias", norm.bias}});
  golden::expect(norm.running_mean, name + ".running_mean");
  golden::expect(norm.running_var, name + ".running_var");
  EXPECT_EQ(norm.num_batches_tracked.item_i64(), 3);

  norm.eval();
  norm.zero_grad();
  x = golden::leaf(20, shape);
  golden::expect_gradients(name + ".eval", norm(x),
                           {{"x", x}, {"weight", norm.weight}, {"bias", norm.bias}});
  EXPECT_EQ(norm.num_batches_tracked.item_i64(), 3);
}

TEST(BatchNorm, HasPyTorchsValuesAndGradientsInTrainingAndEval) {
  expect_golden<BatchNorm1d>("batch_norm.rows", {5, 3}, 0.1);
  expect_golden<BatchNorm1d>("batch_norm.lines", {3, 2, 4}, 0.3);
  expect_golden<BatchNorm2d>("batch_norm.images", {3, 2, 4, 5}, 0.1);
}

TEST(BatchNorm, WithoutAMomentumAveragesOverAllBatches) {
  expect_golden<BatchNorm2d>("batch_norm.average", {3, 2, 4, 5}, std::nullopt);
}

TEST(BatchNorm, GradientsAreThoseOfDifferences) {
  for (const bool training : {true, false}) {
    BatchNorm norm(2);
    norm.to(DType::kF64);
    norm.train(training);
    norm.weight = golden::leaf(2, {2});
    norm.bias = golden::leaf(3, {2});
    assign(norm.running_var, Tensor::from<double>({0.7, 1.9}, {2}));
    const std::string wrong = gradcheck(
        [&](const Tensors& in) {
          norm.weight = in[1];
          norm.bias = in[2];
          return norm(in[0]);
        },
        {golden::leaf(1, {3, 2, 2}), norm.weight, norm.bias});
    EXPECT_EQ(wrong, "") << (training ? "training" : "eval");
  }
}

// Case 7 of the public reports, within one rank.
TEST(BatchNorm, TwoForwardsAndOneBackwardAddTheirGradients) {
  for (const bool training : {true, false}) {
    const auto make = [&] {
      auto norm = std::make_shared<BatchNorm1d>(3);
      norm->to(DType::kF64);
      norm->train(training);
      return norm;
    };
    const Tensor weights = golden::wave(4, {5, 3});
    const auto norm = make();
    const Tensor first = sum(norm->forward(golden::wave(1, {5, 3})) * weights);
    const Tensor second = sum(norm->forward(golden::wave(2, {5, 3})) * weights);
    (first + second).backward();

    const auto apart = make();
    sum(apart->forward(golden::wave(1, {5, 3})) * weights).backward();
    sum(apart->forward(golden::wave(2, {5, 3})) * weights).backward();
    EXPECT_THAT(
        norm->weight.grad().to_vector<double>(),
        testing::Pointwise(testing::DoubleNear(1e-12), apart->weight.grad().to_vector<double>()));
  }
}

TEST(BatchNorm, AGraphOutlivesAChangeOfTheBuffers) {
  BatchNorm1d norm(2);
  norm.to(DType::kF64);
  norm.eval();
  assign(norm.running_mean, Tensor::from<double>({1, 2}, {2}));
  const Tensor x = golden::leaf(1, {3, 2});
  const Tensor y = norm(x);
  norm.running_mean.set_data(Tensor::from<double>({50, 60}, {2}));
  norm.train();
  norm(golden::wave(2, {3, 2}));
  sum(y * golden::wave(3, {3, 2})).backward();
  double expected = 0;  // sum over rows of w (x - mean) / sqrt(1 + eps), channel 0
  for (int64_t row = 0; row < 3; ++row) {
    expected += golden::wave(3, {3, 2}).data<double>()[2 * row] * (x.data<double>()[2 * row] - 1) /
                std::sqrt(1 + 1e-5);
  }
  EXPECT_NEAR(norm.weight.grad().data<double>()[0], expected, 1e-12);
}

TEST(BatchNorm, WithoutTrackingUsesTheBatchInEvalToo) {
  BatchNorm1d norm(3, {.affine = false, .track_running_stats = false});
  EXPECT_TRUE(norm.named_parameters().empty());
  EXPECT_TRUE(norm.named_buffers().empty());
  const Tensor x = to(golden::wave(1, {5, 3}), DType::kF32);
  const std::vector<float> training = norm(x).to_vector<float>();
  norm.eval();
  EXPECT_EQ(norm(x).to_vector<float>(), training);
}

// A group that counts what it is asked.
class CountingGroup : public BatchNormGroup {
 public:
  void merge_statistics(Tensor&, Tensor&, int64_t&) override { ++merges; }
  Tensor all_sum(const Tensor& x) override {
    ++sums;
    return x;
  }
  int merges = 0;
  int sums = 0;
};

TEST(BatchNorm, AsksItsGroupInTrainingAndNeverInEval) {
  const auto group = std::make_shared<CountingGroup>();
  BatchNorm1d norm(3);
  norm.set_group(group);
  sum(norm(to(golden::wave(1, {5, 3}), DType::kF32))).backward();
  EXPECT_EQ(group->merges, 1);
  EXPECT_EQ(group->sums, 1);
  norm.eval();
  sum(norm(to(golden::wave(1, {5, 3}), DType::kF32))).backward();
  EXPECT_EQ(group->merges, 1);
  EXPECT_EQ(group->sums, 1);
}

TEST(BatchNorm, WithoutTrackingUsesThisRanksBatchAloneInEval) {
  const auto group = std::make_shared<CountingGroup>();
  BatchNorm1d norm(3, {.track_running_stats = false});
  norm.set_group(group);
  norm.eval();
  sum(norm(to(golden::wave(1, {5, 3}), DType::kF32))).backward();
  EXPECT_EQ(group->merges, 0);
  EXPECT_EQ(group->sums, 0);
}

TEST(BatchNorm, RefusesOneValuePerChannelAndCountsNothing) {
  BatchNorm1d norm(3);
  EXPECT_THAT(error_of([&] { norm(Tensor::ones({1, 3})); }), HasSubstr("(1, 3)"));
  EXPECT_EQ(norm.num_batches_tracked.item_i64(), 0);
  EXPECT_EQ(norm.running_mean.to_vector<float>(), std::vector<float>(3, 0.0f));
}

TEST(BatchNorm, RefusesOtherShapesByName) {
  BatchNorm1d lines(3);
  BatchNorm2d images(3);
  BatchNorm3d volumes(3);
  EXPECT_EQ(volumes(Tensor::ones({2, 3, 4, 5, 1})).dim(), 5);
  EXPECT_THAT(error_of([&] { volumes(Tensor::ones({2, 3, 4, 5})); }), HasSubstr("BatchNorm3d"));
  EXPECT_THAT(error_of([&] { lines(Tensor::ones({2, 4})); }), HasSubstr("(2, 4)"));
  EXPECT_THAT(error_of([&] { lines(Tensor::ones({2, 3, 4, 5})); }), HasSubstr("BatchNorm1d"));
  EXPECT_THAT(error_of([&] { images(Tensor::ones({2, 3})); }), HasSubstr("BatchNorm2d"));
  EXPECT_THAT(error_of([] { BatchNorm1d(0); }), HasSubstr("num_features"));
  EXPECT_THAT(error_of([] { BatchNorm1d(3, {.momentum = 1.5}); }), HasSubstr("1.5"));
}

}  // namespace
}  // namespace lockstep::nn
