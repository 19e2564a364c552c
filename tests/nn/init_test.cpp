#include "lockstep/nn/init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/core/ops.h"
#include "lockstep/nn/conv.h"
#include "lockstep/nn/linear.h"

namespace lockstep::nn {
namespace {

struct Moments {
  double mean;
  double std;
  double largest;
};

Moments moments(const Tensor& x) {
  double sum = 0, squares = 0, largest = 0;
  const std::vector<float> values = x.to_vector<float>();
  for (const double v : values) {
    sum += v;
    squares += v * v;
    largest = std::max(largest, std::abs(v));
  }
  const auto n = static_cast<double>(values.size());
  return {sum / n, std::sqrt(squares / n - sum / n * (sum / n)), largest};
}

// Over n draws the mean is off by std / sqrt(n), the spread by about std / sqrt(2 n): five of these
// is out of the question for a right generator, and the seed is fixed.
void expect_moments(const Tensor& x, double mean, double std) {
  const Moments got = moments(x);
  const double slack = 5 * std / std::sqrt(static_cast<double>(x.numel()));
  EXPECT_NEAR(got.mean, mean, slack);
  EXPECT_NEAR(got.std, std, slack);
}

TEST(Init, FansCountTheWindow) {
  const Fans f = fans(Tensor::zeros({8, 3, 5, 7}));
  EXPECT_EQ(f.in, 3 * 5 * 7);
  EXPECT_EQ(f.out, 8 * 5 * 7);
  EXPECT_THROW(fans(Tensor::zeros({8})), Error);
}

TEST(Init, DistributionsHaveTheirMoments) {
  Generator generator{.seed = 17};
  Tensor w = Tensor::zeros({61, 101});
  uniform_(w, -2, 4, &generator);
  expect_moments(w, 1, 6 / std::sqrt(12.0));
  normal_(w, 3, 0.5, &generator);
  expect_moments(w, 3, 0.5);
  kaiming_normal_(w, 0, &generator);
  expect_moments(w, 0, std::sqrt(2.0 / 101));
  kaiming_uniform_(w, std::sqrt(5.0), &generator);
  expect_moments(w, 0, 1 / std::sqrt(3 * 101.0));
  EXPECT_LE(moments(w).largest, 1 / std::sqrt(101.0));
  xavier_uniform_(w, 2, &generator);
  expect_moments(w, 0, 2 * std::sqrt(2.0 / (61 + 101)));
  EXPECT_LE(moments(w).largest, 2 * std::sqrt(6.0 / (61 + 101)));
  xavier_normal_(w, 1, &generator);
  expect_moments(w, 0, std::sqrt(2.0 / (61 + 101)));
}

TEST(Init, KaimingTakesTheFanItIsTold) {
  Generator generator{.seed = 18};
  Tensor w = Tensor::zeros({61, 101});
  kaiming_normal_(w, 0, &generator, FanMode::kOut);
  expect_moments(w, 0, std::sqrt(2.0 / 61));
  kaiming_uniform_(w, 0, &generator, FanMode::kOut);
  expect_moments(w, 0, std::sqrt(2.0 / 61));
}

// The moments of N(m, s^2) between two values: Johnson, Kotz and Balakrishnan, 1994, 10.1.
void expect_truncated(double m, double s, double low, double high) {
  Generator generator{.seed = 19};
  Tensor w = Tensor::zeros({307, 101});
  trunc_normal_(w, m, s, low, high, &generator);
  const auto density = [](double x) {
    return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
  };
  const auto share = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
  const double a = (low - m) / s, b = (high - m) / s;
  const double z = a > 0 ? share(-a) - share(-b) : share(b) - share(a);
  const double shift = (density(a) - density(b)) / z;
  const double spread = 1 + (a * density(a) - b * density(b)) / z - shift * shift;
  expect_moments(w, m + s * shift, s * std::sqrt(spread));
  for (const float v : w.to_vector<float>()) {
    ASSERT_GE(v, static_cast<float>(low));
    ASSERT_LE(v, static_cast<float>(high));
  }
}

TEST(Init, TruncatedNormalHasItsMomentsAndBounds) {
  expect_truncated(0, 1, -2, 2);
  expect_truncated(0.5, 0.2, 0.4, 1.5);
  expect_truncated(0, 1, 3, 4);  // tails, where a rejected draw would be the rule
  expect_truncated(0, 1, -9, -8);
  expect_truncated(1, 3, -50, 50);
  Tensor w = Tensor::zeros({3});
  EXPECT_THROW(trunc_normal_(w, 0, 1, 2, 1), Error);
  EXPECT_THROW(trunc_normal_(w, 0, 0), Error);
  EXPECT_THROW(trunc_normal_(w, 0, 1e-3, 5, 6), Error);
}

TEST(Init, OrthogonalRowsOrColumnsAreOrthonormal) {
  Generator generator{.seed = 20};
  for (const Shape& shape : {Shape{5, 9}, Shape{9, 5}, Shape{7, 7}, Shape{4, 3, 2, 2}}) {
    Tensor w = Tensor::zeros(shape, {DType::kF64});
    orthogonal_(w, 1.5, &generator);
    const Tensor matrix = reshape(w, {shape[0], -1});
    const bool wide = matrix.size(1) >= matrix.size(0);
    const Tensor products = wide ? matmul(matrix, matrix.t()) : matmul(matrix.t(), matrix);
    const int64_t n = products.size(0);
    for (int64_t i = 0; i < n * n; ++i) {
      EXPECT_NEAR(products.data<double>()[i], i % (n + 1) == 0 ? 2.25 : 0, 1e-13);
    }
  }
  Tensor vector = Tensor::zeros({3});
  EXPECT_THROW(orthogonal_(vector), Error);
}

TEST(Init, ConstantsWriteWhereAGradientIsRequired) {
  Tensor w = Tensor::zeros({3});
  w.set_requires_grad();
  ones_(w);
  EXPECT_EQ(w.to_vector<float>(), std::vector<float>(3, 1.0f));
  zeros_(w);
  EXPECT_EQ(w.to_vector<float>(), std::vector<float>(3, 0.0f));
}

TEST(Init, LayersStartWithinOneOverTheRootOfFanIn) {
  manual_seed(5);
  const Linear linear(97, 53);
  EXPECT_LE(moments(linear.weight).largest, 1 / std::sqrt(97.0));
  expect_moments(linear.weight, 0, 1 / std::sqrt(3 * 97.0));
  EXPECT_LE(moments(linear.bias).largest, 1 / std::sqrt(97.0));
  EXPECT_GT(moments(linear.bias).largest, 0);
  const Conv2d conv(6, 20, {3, 5}, {.groups = 2});
  EXPECT_LE(moments(conv.weight).largest, 1 / std::sqrt(3 * 15.0));
  expect_moments(conv.weight, 0, 1 / std::sqrt(3 * 3 * 15.0));
}

TEST(Init, TheSameSeedMakesTheSameLayer) {
  manual_seed(5);
  const Linear a(7, 3);
  const Linear b(7, 3);
  manual_seed(5);
  const Linear c(7, 3);
  EXPECT_EQ(a.weight.to_vector<float>(), c.weight.to_vector<float>());
  EXPECT_EQ(a.bias.to_vector<float>(), c.bias.to_vector<float>());
  EXPECT_NE(a.weight.to_vector<float>(), b.weight.to_vector<float>());
}

}  // namespace
}  // namespace lockstep::nn
