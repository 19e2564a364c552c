#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layers.h"
#include "lockstep/nn/optim.h"
#include "steps.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

// PyTorch has no LAMB: make_layers.py takes the paper's steps with its tensors.
TEST(LAMB, TakesThePapersSteps) {
  const auto expect = [](const std::string& name, const LAMBOptions& options) {
    expect_golden_steps(name,
                        [options](NamedTensors p) { return std::make_unique<LAMB>(p, options); });
  };
  expect("lamb.plain", {});
  expect("lamb.decay", {.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0.1});
}

TEST(LAMB, ItsFirstStepIsThatPartOfTheWeightsNorm) {
  Tensor w = Tensor::from<double>({3, -4}, {2}).set_requires_grad();
  LAMB optimizer({{"w", w}}, {.lr = 0.1, .eps = 0});
  w.set_grad(Tensor::from<double>({1e-3, 7}, {2}));
  optimizer.step();
  // The direction is (1, 1), of norm sqrt(2); the weights' norm is 5.
  const double step = 0.1 * 5 / std::sqrt(2.0);
  EXPECT_NEAR(w.to_vector<double>()[0], 3 - step, 1e-12);
  EXPECT_NEAR(w.to_vector<double>()[1], -4 - step, 1e-12);
}

TEST(LAMB, ZeroWeightsTakeThePlainRate) {
  Tensor w = Tensor::zeros({3}, {DType::kF64}).set_requires_grad();
  LAMB optimizer({{"w", w}}, {.lr = 0.1, .eps = 0});
  w.set_grad(Tensor::from<double>({2, -5, 1}, {3}));
  optimizer.step();
  EXPECT_THAT(w.to_vector<double>(), ::testing::ElementsAre(-0.1, 0.1, -0.1));
}

TEST(LAMB, RefusesOptionsOutOfRange) {
  const NamedTensors p = {{"w", golden::leaf(1, {3})}};
  EXPECT_THAT(error_of([&] { LAMB(p, {.betas = {0.9, 1}}); }), HasSubstr("[LAMB]"));
}

}  // namespace
}  // namespace lockstep::nn
