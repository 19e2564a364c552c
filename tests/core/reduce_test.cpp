// What the table of ops cannot say of reductions: integers, gradients at corners, nothing at all.
#include "lockstep/core/ops/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

Tensor leaf(std::initializer_list<double> values, const Shape& shape) {
  return Tensor::from(values, shape).set_requires_grad();
}

TEST(Reduce, IntegersAndBoolBecomeI64) {
  const Tensor x = Tensor::from<uint8_t>({200, 100, 3, 4, 0, 6}, {2, 3});
  EXPECT_THAT(sum(x, {1}).to_vector<int64_t>(), ElementsAre(303, 10));
  EXPECT_THAT(prod(x, {1}).to_vector<int64_t>(), ElementsAre(60000, 0));
  EXPECT_THAT(cumsum(x, 1).to_vector<int64_t>(), ElementsAre(200, 300, 303, 4, 4, 10));
  EXPECT_THAT(max(x, {0}).to_vector<uint8_t>(), ElementsAre(200, 100, 6));
  EXPECT_EQ(sum(gt(x, 3.0)).item_i64(), 4);
}

TEST(Reduce, ExtremesComeWithTheFirstOfTheirPlaces) {
  const Tensor x = leaf({3, 7, 7, 1, NAN, 2, -5, 0, -5}, {3, 3});
  const Extremes top = max_with_indices(x, 1);
  EXPECT_THAT(top.indices.to_vector<int64_t>(), ElementsAre(1, 1, 1));
  EXPECT_EQ(top.values.shape(), Shape({3}));
  EXPECT_EQ(top.values.select(0, 0).item(), 7);
  EXPECT_TRUE(std::isnan(top.values.select(0, 1).item()));
  const Extremes least = min_with_indices(x, -1, true);
  EXPECT_EQ(least.values.shape(), Shape({3, 1}));
  EXPECT_THAT(least.indices.to_vector<int64_t>(), ElementsAre(0, 1, 0));
  // One place takes the whole gradient, where max() shares it.
  sum(top.values.select(0, 0)).backward();
  EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(0, 1, 0, 0, 0, 0, 0, 0, 0));
  const Tensor integers = Tensor::from<int32_t>({4, 9, -2, 9}, {2, 2});
  EXPECT_THAT(max_with_indices(integers, 0).values.to_vector<int32_t>(), ElementsAre(4, 9));
  EXPECT_THAT(max_with_indices(integers, 0).indices.to_vector<int64_t>(), ElementsAre(0, 0));
  EXPECT_EQ(max_with_indices(Tensor::scalar(3), 0).values.shape(), Shape());
  EXPECT_EQ(max_with_indices(Tensor::scalar(3), 0).indices.item_i64(), 0);
  EXPECT_THROW(max_with_indices(Tensor::ones({2, 0}), 1), Error);
}

TEST(Reduce, AllAndAny) {
  const Tensor x = Tensor::from<double>({1, 0, NAN, 2, 0, 0}, {3, 2});
  EXPECT_THAT(all(x, {1}).to_vector<bool>(), ElementsAre(false, true, false));
  EXPECT_THAT(any(x, {1}).to_vector<bool>(), ElementsAre(true, true, false));
  EXPECT_EQ(all(Tensor::zeros({0})).item(), 1);
  EXPECT_EQ(any(Tensor::zeros({0})).item(), 0);
}

TEST(Reduce, OfAScalarAndOfNothing) {
  const Tensor x = leaf({3}, {});
  EXPECT_EQ(sum(x).item(), 3);
  EXPECT_EQ(prod(x).item(), 3);
  EXPECT_EQ(max(x).item(), 3);
  EXPECT_EQ(argmax(x).item_i64(), 0);
  EXPECT_EQ(cumsum(x, 0).item(), 3);
  EXPECT_EQ(logsumexp(x).item(), 3);
  EXPECT_EQ(norm(x).item(), 3);
  EXPECT_EQ(var(x, {}, 0).item(), 0);
  EXPECT_TRUE(std::isnan(var(x).item()));
  const Tensor nothing = Tensor::zeros({0, 3}, {DType::kF64}).set_requires_grad();
  EXPECT_THAT(prod(nothing, {0}).to_vector<double>(), ElementsAre(1, 1, 1));
  EXPECT_THAT(logsumexp(nothing, {0}).to_vector<double>(),
              ElementsAre(-INFINITY, -INFINITY, -INFINITY));
  EXPECT_THAT(norm(nothing, 2, {0}).to_vector<double>(), ElementsAre(0, 0, 0));
  EXPECT_TRUE(std::isnan(mean(nothing).item()));
  EXPECT_EQ(sum(nothing, {1}).shape(), Shape{0});
  sum(prod(nothing, {0})).backward();
  EXPECT_EQ(nothing.grad().shape(), (Shape{0, 3}));
}

TEST(Reduce, RootsHaveNoSlopeAtZero) {
  const Tensor flat = leaf({2, 2, 2, 1, 3, 5}, {2, 3});
  sum(lockstep::std(flat, {1})).backward();
  EXPECT_THAT(flat.grad().to_vector<double>(), ElementsAre(0, 0, 0, -0.5, 0, 0.5));
  for (double p : {1.0, 2.0, 3.0}) {
    const Tensor zero = leaf({0, 0}, {2});
    norm(zero, p).backward();
    EXPECT_THAT(zero.grad().to_vector<double>(), ElementsAre(0, 0)) << p;
  }
}

TEST(Reduce, LogSumExpNeitherOverflowsNorLosesItsGradient) {
  const Tensor x = leaf({1000, 1000, -INFINITY, -INFINITY, -1000, -INFINITY}, {3, 2});
  const Tensor y = logsumexp(x, {1});
  EXPECT_THAT(y.to_vector<double>(), ElementsAre(1000 + std::log(2.0), -INFINITY, -1000));
  sum(y).backward();
  const auto half = testing::DoubleNear(0.5, 1e-12);  // log 2 beside 1000 lost some digits
  EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(half, half, 0, 0, 1, 0));
}

TEST(Reduce, SixteenBitFloatsKeepTheirSpread) {
  // 256 and 258 are neighbours in bf16, and their mean, 257, is between them.
  const Tensor x = Tensor::from<double>({256, 258}, {2}).to(DType::kBF16);
  EXPECT_EQ(var(x).item(), 2);
  EXPECT_EQ(norm(Tensor::full({4}, 300, {DType::kF16})).item(), 600);  // 300^2 is no f16
}

}  // namespace
}  // namespace lockstep
