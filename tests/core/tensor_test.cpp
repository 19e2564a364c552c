#include "lockstep/core/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

Tensor counting(const Shape& shape) {
  return Tensor::arange(numel(shape)).to(DType::kF32).reshape(shape);
}

TEST(Tensor, MakesWhatItIsAskedFor) {
  EXPECT_THAT(Tensor::zeros({2}).to_vector<float>(), ElementsAre(0, 0));
  EXPECT_THAT(Tensor::full({2}, 7, {DType::kI32}).to_vector<int32_t>(), ElementsAre(7, 7));
  EXPECT_THAT(Tensor::arange(3).to_vector<int64_t>(), ElementsAre(0, 1, 2));
  EXPECT_EQ(Tensor::scalar(2.5).item(), 2.5);
  EXPECT_EQ(Tensor::empty({3, 0, 5}).numel(), 0);
  EXPECT_THAT(
      [] {
        Tensor::from<float>({1, 2, 3}, {2, 2});
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("4 values"), HasSubstr("got 3"))));
  EXPECT_THAT([] { Tensor::empty({-1}); }, ThrowsMessage<Error>(HasSubstr("(-1)")));
  EXPECT_THAT(
      [] {
        Tensor::empty({int64_t{1} << 40, int64_t{1} << 40});
      },
      ThrowsMessage<Error>(HasSubstr("does not fit 64 bits")));
}

TEST(Tensor, CountsAndStepsAndDiagonals) {
  EXPECT_THAT(Tensor::arange(2, 9, 3).to_vector<int64_t>(), ElementsAre(2, 5, 8));
  EXPECT_THAT(Tensor::arange(2, -3, -2).to_vector<int64_t>(), ElementsAre(2, 0, -2));
  EXPECT_EQ(Tensor::arange(2, 2, 1).numel(), 0);
  EXPECT_EQ(Tensor::arange(3, 2, 1).numel(), 0);
  EXPECT_THAT(Tensor::arange(0, 1, 0.25, {DType::kF32}).to_vector<float>(),
              ElementsAre(0, 0.25, 0.5, 0.75));
  EXPECT_THAT(Tensor::linspace(-1, 1, 5).to_vector<float>(), ElementsAre(-1, -0.5, 0, 0.5, 1));
  EXPECT_THAT(Tensor::linspace(3, 7, 1).to_vector<float>(), ElementsAre(3));
  EXPECT_EQ(Tensor::linspace(0, 0.1, 30, {DType::kF64}).to_vector<double>().back(), 0.1);
  EXPECT_THAT(Tensor::eye(2, 3, {DType::kI32}).to_vector<int32_t>(), ElementsAre(1, 0, 0, 0, 1, 0));
  EXPECT_THAT(Tensor::eye(2).to_vector<float>(), ElementsAre(1, 0, 0, 1));
}

TEST(Tensor, SaysWhatIsWrongWithAnUndefinedOne) {
  const Tensor nothing;
  EXPECT_FALSE(nothing.defined());
  EXPECT_THAT([&] { nothing.shape(); }, ThrowsMessage<Error>(HasSubstr("undefined")));
  EXPECT_THAT([&] { nothing + nothing; }, ThrowsMessage<Error>(HasSubstr("[add]")));
}

TEST(Tensor, SharesMemoryBetweenViews) {
  Tensor x = counting({3, 4});
  const Tensor column = x.select(1, 2);
  EXPECT_THAT(column.to_vector<float>(), ElementsAre(2, 6, 10));
  Tensor row = x.select(0, -1);
  row.fill_(9);
  EXPECT_THAT(column.to_vector<float>(), ElementsAre(2, 6, 9));
  EXPECT_TRUE(x.shares_storage(column));
  EXPECT_EQ(x.version(), 1u);
  EXPECT_EQ(column.version(), 1u);
}

TEST(Tensor, WalksStridesInRowMajorOrder) {
  const Tensor x = counting({2, 3});
  EXPECT_THAT(x.t().to_vector<float>(), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(slice(x, 1, 0, 3, 2).to_vector<float>(), ElementsAre(0, 2, 3, 5));
  EXPECT_THAT(expand(x.select(0, 1), {2, 3}).to_vector<float>(), ElementsAre(3, 4, 5, 3, 4, 5));
}

TEST(Tensor, ReshapesAsAViewWhereStridesCanSayIt) {
  const Tensor x = counting({4, 3, 5});
  EXPECT_TRUE(x.reshape({12, 5}).shares_storage(x));
  EXPECT_TRUE(x.reshape({2, 2, 15}).shares_storage(x));
  EXPECT_TRUE(x.narrow(1, 1, 2).reshape({4, 10}).shares_storage(x));
  EXPECT_TRUE(x.narrow(1, 0, 1).reshape({4, 5, 1}).shares_storage(x));
  EXPECT_FALSE(x.narrow(2, 1, 2).reshape({4, 6}).shares_storage(x));
  EXPECT_EQ(x.reshape({-1, 15}).shape(), (Shape{4, 15}));
  const Tensor crossed = x.permute({2, 0, 1});
  EXPECT_TRUE(crossed.reshape({5, 12}).shares_storage(x));
  EXPECT_FALSE(crossed.reshape({60}).shares_storage(x));
  EXPECT_EQ(crossed.reshape({60}).to_vector<float>(), crossed.to_vector<float>());
  EXPECT_THAT([&] { x.reshape({7, -1}); }, ThrowsMessage<Error>(HasSubstr("60 elements")));
}

TEST(Tensor, KeepsADenseMemoryOrder) {
  const Tensor x = counting({2, 3, 4, 5}).channels_last();
  EXPECT_TRUE(x.is_channels_last());
  EXPECT_TRUE((x + x).is_channels_last());
  EXPECT_TRUE((x + 1.0).is_channels_last());
  EXPECT_TRUE(relu(x).is_channels_last());
  EXPECT_TRUE(x.clone().is_channels_last());
  EXPECT_TRUE(x.contiguous().is_contiguous());
  EXPECT_EQ(x.to_vector<float>(), counting({2, 3, 4, 5}).to_vector<float>());
}

TEST(Tensor, CopiesAndConverts) {
  Tensor x = Tensor::zeros({2, 2}, {DType::kF16});
  x.copy_(Tensor::from<int64_t>({3, 4}, {2}));
  EXPECT_THAT(x.to(DType::kF64).to_vector<double>(), ElementsAre(3, 4, 3, 4));
  EXPECT_THAT([&] { x.copy_(Tensor::zeros({3})); },
              ThrowsMessage<Error>(AllOf(HasSubstr("(2, 2)"), HasSubstr("(3)"))));
}

TEST(Tensor, RefusesOperandsThatDoNotFit) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_THAT([&] { x + Tensor::zeros({2}); },
              ThrowsMessage<Error>(AllOf(HasSubstr("[add]"), HasSubstr("(2, 3) and (2)"))));
  EXPECT_THAT([&] { x* Tensor::zeros({3}, {DType::kF64}); },
              ThrowsMessage<Error>(AllOf(HasSubstr("[mul]"), HasSubstr("f32"), HasSubstr("f64"))));
  EXPECT_THAT([&] { matmul(x, x); }, ThrowsMessage<Error>(HasSubstr("(2, 3) and (2, 3)")));
  EXPECT_THAT(
      [] {
        conv2d(Tensor::zeros({1, 1, 2, 2}), Tensor::zeros({1, 1, 3, 3}), Tensor(), {{2, 2}});
      },
      ThrowsMessage<Error>(HasSubstr("kernel that fits")));
  EXPECT_THAT(
      [] {
        index_add({3}, 1, Tensor::arange(2), Tensor::zeros({3, 2}));
      },
      ThrowsMessage<Error>(HasSubstr("[index_add]")));
  EXPECT_THAT(
      [] {
        avg_pool2d(Tensor::zeros({1, 1, 4, 4}), {.dilation = {2, 2}});
      },
      ThrowsMessage<Error>(HasSubstr("no dilation")));
  EXPECT_THAT([&] { x.data<double>(); }, ThrowsMessage<Error>(HasSubstr("want a tensor of f64")));
  EXPECT_THAT([&] { x.item(); }, ThrowsMessage<Error>(HasSubstr("one element")));
  EXPECT_THAT(
      [&] {
        Tensor::empty({1}, {DType::kF32, {DeviceType::kCuda, 0}});
      },
      ThrowsMessage<Error>(HasSubstr("cuda:0")));
}

TEST(Tensor, SumAndMeanAreTheFunctionsOfTheirNames) {
  EXPECT_EQ(counting({2, 3}).sum().item(), 15);
  EXPECT_EQ(counting({2, 3}).mean().item(), 2.5);
}

// It copied the whole tensor to show its corners.
TEST(Tensor, PrintingReadsOnlyWhatIsShown) {
  const Tensor row = Tensor::arange(12).reshape({12, 1});
  EXPECT_EQ(expand(row, {12, int64_t{1} << 40}).narrow(0, 4, 1).to_string(),
            "[[4, 4, 4, ..., 4, 4, 4]]  # (1, 1099511627776) i64");
}

TEST(Tensor, PrintsWhatAPersonCanRead) {
  EXPECT_EQ(Tensor::from<float>({1, 2.5, -3}, {3}).to_string(),
            "[ 1.0000,  2.5000, -3.0000]  # (3) f32");
  EXPECT_EQ(Tensor::from<float>({1, 20}, {2}).to_string(), "[ 1., 20.]  # (2) f32");
  EXPECT_EQ(Tensor::from<int64_t>({1, 2, 3, 4}, {2, 2}).to_string(),
            "[[1, 2],\n [3, 4]]  # (2, 2) i64");
  EXPECT_EQ(Tensor::scalar(0.5).to_string(), "0.5000  # () f32");
  EXPECT_EQ(Tensor::arange(1000).to_string(), "[  0,   1,   2, ..., 997, 998, 999]  # (1000) i64");
  EXPECT_EQ(Tensor::from<bool>({true, false}, {2}).to_string(), "[ true, false]  # (2) bool");
  EXPECT_EQ(Tensor::from<int64_t>({INT64_MAX}, {1}).to_string(),
            "[9223372036854775807]  # (1) i64");
  EXPECT_THAT(Tensor::from<float>({NAN, INFINITY, 1e-20f}, {3}).to_string(),
              AllOf(HasSubstr("nan"), HasSubstr("inf"), HasSubstr("1.0000e-20")));
  EXPECT_EQ(Tensor::from<int32_t>({INT32_MAX, -1}, {2}).to_string(),
            "[2147483647,         -1]  # (2) i32");
  EXPECT_EQ(Tensor().to_string(), "tensor(undefined)");
  EXPECT_EQ(Tensor::empty({0}).to_string(), "[]  # (0) f32");
  std::ostringstream stream;
  stream << (Tensor::ones({1}).set_requires_grad() * 2.0);
  EXPECT_EQ(stream.str(), "[2.]  # (1) f32 by mul");
}

TEST(Random, DependsOnSeedAndPlaceAlone) {
  manual_seed(7);
  const std::vector<float> once = randn({5, 3}).to_vector<float>();
  EXPECT_NE(randn({5, 3}).to_vector<float>(), once);
  manual_seed(7);
  EXPECT_EQ(randn({15}).to_vector<float>(), once);
}

TEST(Random, DrawsFromTheNamedDistributions) {
  manual_seed(3);
  const Tensor u = rand({20000}, {DType::kF64});
  EXPECT_GE(min(u).item(), 0);
  EXPECT_LT(max(u).item(), 1);
  // The mean of n uniform numbers has a deviation of sqrt(1 / 12 n); five of them are allowed.
  EXPECT_NEAR(mean(u).item(), 0.5, 5 * std::sqrt(1.0 / 12 / 20000));
  const Tensor z = randn({20000}, {DType::kF64});
  EXPECT_NEAR(mean(z).item(), 0, 5 / std::sqrt(20000.0));
  EXPECT_NEAR(var(z).item(), 1, 5 * std::sqrt(2.0 / 20000));
  const std::vector<int64_t> k = randint(-2, 3, {1000}).to_vector<int64_t>();
  EXPECT_EQ(*std::min_element(k.begin(), k.end()), -2);
  EXPECT_EQ(*std::max_element(k.begin(), k.end()), 2);
}

TEST(Random, DrawsOnesWithTheProbabilityThatIsAsked) {
  manual_seed(5);
  const Tensor ones = bernoulli(0.3, {20000}, {DType::kF64});
  EXPECT_NEAR(mean(ones).item(), 0.3, 5 * std::sqrt(0.3 * 0.7 / 20000));
  EXPECT_EQ(sum(ones * (1.0 - ones)).item(), 0);
  const Tensor p = expand(Tensor::from<double>({0, 1, 0.5}, {3}), {9999, 3});
  const Tensor drawn = bernoulli(p);
  EXPECT_EQ(drawn.shape(), p.shape());
  EXPECT_THAT(mean(drawn, {0}).to_vector<double>(),
              ElementsAre(0, 1, testing::DoubleNear(0.5, 5 * std::sqrt(0.25 / 9999))));
  EXPECT_EQ(rand_like(drawn).dtype(), DType::kF64);
  EXPECT_EQ(randn_like(drawn).shape(), p.shape());
}

TEST(Random, PermutesEachNumberOnce) {
  manual_seed(11);
  std::vector<int64_t> p = randperm(101).to_vector<int64_t>();
  EXPECT_FALSE(std::is_sorted(p.begin(), p.end()));
  std::sort(p.begin(), p.end());
  for (int64_t i = 0; i < 101; ++i) EXPECT_EQ(p[static_cast<size_t>(i)], i);
}

TEST(Tensor, ViewSharesMemoryOrIsAnError) {
  const Tensor x = Tensor::arange(12);
  const Tensor rows = x.view({3, -1});
  EXPECT_EQ(rows.shape(), Shape({3, 4}));
  EXPECT_TRUE(rows.shares_storage(x));
  try {
    rows.t().view({12});
    FAIL() << "want an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[view]"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("reshape()"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
