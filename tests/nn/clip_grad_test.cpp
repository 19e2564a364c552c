#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layers.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {
namespace {

TEST(ClipGradNorm, HasPyTorchsNormAndGradients) {
  for (const auto& [name, limit] : {std::pair{"small", 0.75}, std::pair{"large", 1e4}}) {
    Tensor a = golden::leaf(1, {7});
    Tensor b = golden::leaf(2, {2, 3});
    const Tensor unused = golden::leaf(3, {5});
    a.set_grad(golden::wave(3, {7}));
    b.set_grad(golden::wave(4, {2, 3}));
    const std::string prefix = std::string("clip_grad_norm.") + name;
    const double norm = clip_grad_norm_({a, unused, b}, limit);
    golden::expect(Tensor::from<double>({norm}, {1}), prefix);
    golden::expect(a.grad(), prefix + ".a");
    golden::expect(b.grad(), prefix + ".b");
    EXPECT_FALSE(unused.has_grad());
  }
}

TEST(ClipGradNorm, LeavesTheLimitBehind) {
  Tensor w = Tensor::ones({1001}).set_requires_grad();
  w.set_grad(Tensor::full({1001}, 3));
  EXPECT_NEAR(clip_grad_norm_({w}, 2), 3 * std::sqrt(1001.0), 1e-9);
  EXPECT_NEAR(clip_grad_norm_({w}, 100), 2, 1e-5);
}

TEST(ClipGradNorm, ReportsANormThatIsNotFinite) {
  Tensor w = Tensor::ones({2}).set_requires_grad();
  w.set_grad(Tensor::from<float>({1, std::nanf("")}, {2}));
  EXPECT_TRUE(std::isnan(clip_grad_norm_({w}, 1)));
  EXPECT_THROW(clip_grad_norm_({w}, -1), Error);
}

TEST(ClipGradNorm, OfNoGradientsIsZero) {
  EXPECT_EQ(clip_grad_norm_({golden::leaf(1, {3})}, 1), 0);
  EXPECT_EQ(clip_grad_norm_({}, 1), 0);
}

TEST(ClipGradValue, PutsEveryElementWithinTheLimit) {
  Tensor w = Tensor::ones({5}).set_requires_grad();
  w.set_grad(Tensor::from<float>({-3, -0.5f, 0, 0.75f, 9}, {5}));
  const Tensor gradient = w.grad();
  clip_grad_value_({w, golden::leaf(1, {3})}, 0.7);
  EXPECT_EQ(gradient.to_vector<float>(), (std::vector<float>{-0.7f, -0.5f, 0, 0.7f, 0.7f}));
  EXPECT_THROW(clip_grad_value_({w}, -1), Error);
}

}  // namespace
}  // namespace lockstep::nn
