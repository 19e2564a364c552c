#include "lockstep/nn/init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

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
