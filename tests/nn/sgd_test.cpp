#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/nn/optim.h"
#include "steps.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

TEST(SGD, TakesPyTorchsSteps) {
  expect_golden_steps(
      "sgd.plain", [](NamedTensors p) { return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1}); });
  expect_golden_steps("sgd.decay", [](NamedTensors p) {
    return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1, .weight_decay = 0.05});
  });
  expect_golden_steps("sgd.momentum", [](NamedTensors p) {
    return std::make_unique<SGD>(
        p, SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05});
  });
  expect_golden_steps("sgd.nesterov", [](NamedTensors p) {
    return std::make_unique<SGD>(
        p, SGDOptions{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.05, .nesterov = true});
  });
}

TEST(SGD, KeepsNoStateWithoutMomentum) {
  Tensor w = golden::leaf(1, {3});
  SGD optimizer({{"w", w}}, {.lr = 0.1});
  w.set_grad(golden::wave(2, {3}));
  optimizer.step();
  EXPECT_TRUE(optimizer.named_state().empty());
}

TEST(SGD, StepsSixteenBitParameters) {
  Tensor w = Tensor::from<float>({1, -2, 0.5f}, {3}).to(DType::kBF16).set_requires_grad();
  SGD optimizer({{"w", w}}, {.lr = 0.25, .momentum = 0.5});
  for (int t = 0; t < 2; ++t) {
    w.set_grad(Tensor::from<float>({1, 2, -4}, {3}).to(DType::kBF16));
    optimizer.step();
  }
  // Buffers g and 1.5 g: w - 0.25 * 2.5 g, exact in eight bits.
  EXPECT_EQ(w.detach().to(DType::kF32).to_vector<float>(), (std::vector<float>{0.375f, -3.25f, 3}));
}

TEST(SGD, RefusesOptionsOutOfRange) {
  const NamedTensors p = {{"w", golden::leaf(1, {3})}};
  EXPECT_THAT(error_of([&] { SGD(p, {.lr = -1}); }), HasSubstr("-1"));
  EXPECT_THAT(error_of([&] { SGD(p, {.momentum = -0.5}); }), HasSubstr("-0.5"));
  EXPECT_THAT(error_of([&] { SGD(p, {.weight_decay = -0.5}); }), HasSubstr("-0.5"));
  EXPECT_THAT(error_of([&] { SGD(p, {.nesterov = true}); }), HasSubstr("nesterov"));
  EXPECT_THAT(error_of([&] { SGD(p, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}); }),
              HasSubstr("dampening"));
  EXPECT_THAT(error_of([&] { SGD(p, {.lr = std::nan("")}); }), HasSubstr("nan"));
}

}  // namespace
}  // namespace lockstep::nn
