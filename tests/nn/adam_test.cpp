#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layers.h"
#include "lockstep/nn/optim.h"
#include "steps.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

TEST(Adam, TakesPyTorchsSteps) {
  expect_golden_steps("adam.plain", [](NamedTensors p) {
    return std::make_unique<Adam>(p, AdamOptions{.lr = 0.02});
  });
  expect_golden_steps("adam.decay", [](NamedTensors p) {
    return std::make_unique<Adam>(
        p, AdamOptions{.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0.1});
  });
}

TEST(AdamW, TakesPyTorchsSteps) {
  expect_golden_steps("adamw", [](NamedTensors p) {
    return std::make_unique<AdamW>(
        p, AdamWOptions{.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-4, .weight_decay = 0.1});
  });
  expect_golden_steps("adamw.defaults",
                      [](NamedTensors p) { return std::make_unique<AdamW>(p, AdamWOptions{}); });
}

TEST(AdamW, ItsFirstStepIsTheRateInTheGradientsDirection) {
  Tensor w = Tensor::from<double>({5, 5, 5}, {3}).set_requires_grad();
  AdamW optimizer({{"w", w}}, {.lr = 0.1, .weight_decay = 0});
  w.set_grad(Tensor::from<double>({1e-3, -7, 4e5}, {3}));
  optimizer.step();
  const std::vector<double> got = w.to_vector<double>();
  EXPECT_NEAR(got[0], 4.9, 1e-5);  // eps is 1e-5 of this gradient
  EXPECT_NEAR(got[1], 5.1, 1e-9);
  EXPECT_NEAR(got[2], 4.9, 1e-9);
}

TEST(Adam, RefusesOptionsOutOfRange) {
  const NamedTensors p = {{"w", golden::leaf(1, {3})}};
  EXPECT_THAT(error_of([&] { Adam(p, {.lr = -1}); }), HasSubstr("[Adam]"));
  EXPECT_THAT(error_of([&] { AdamW(p, {.eps = -1}); }), HasSubstr("[AdamW]"));
  EXPECT_THAT(error_of([&] { AdamW(p, {.betas = {0.9, 1}}); }), HasSubstr("0.9 and 1"));
  EXPECT_THAT(error_of([&] { AdamW(p, {.betas = {-0.1, 0.5}}); }), HasSubstr("-0.1"));
  EXPECT_THAT(error_of([&] { AdamW(p, {.weight_decay = std::nan("")}); }), HasSubstr("nan"));
}

}  // namespace
}  // namespace lockstep::nn
