#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/nn/optim.h"
#include "steps.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

TEST(RMSprop, TakesPyTorchsSteps) {
  const auto expect = [](const std::string& name, const RMSpropOptions& options) {
    expect_golden_steps(
        name, [options](NamedTensors p) { return std::make_unique<RMSprop>(p, options); });
  };
  expect("rmsprop.plain", {});
  expect("rmsprop.decay", {.lr = 0.02, .alpha = 0.9, .eps = 1e-4, .weight_decay = 0.1});
  expect("rmsprop.momentum", {.lr = 0.02, .momentum = 0.8});
  expect("rmsprop.centered", {.lr = 0.02, .eps = 1e-3, .momentum = 0.5, .centered = true});
}

TEST(RMSprop, KeepsTheStateItsOptionsNeedAndLoadsIt) {
  const auto stepped = [](Tensor& w, const RMSpropOptions& options) {
    auto optimizer = std::make_unique<RMSprop>(NamedTensors{{"w", w}}, options);
    w.set_grad(golden::wave(2, {3}));
    optimizer->step();
    return optimizer;
  };
  Tensor w = golden::leaf(1, {3});
  const auto plain = stepped(w, {});
  EXPECT_EQ(plain->named_state().size(), 1);
  Tensor x = w.detach().clone().set_requires_grad();
  RMSprop other({{"w", x}}, {});
  other.load_named_state(plain->named_state());
  x.set_grad(w.grad());
  other.step();
  plain->step();
  EXPECT_EQ(x.to_vector<double>(), w.to_vector<double>());
  const auto full = stepped(w, {.momentum = 0.9, .centered = true});
  EXPECT_EQ(full->named_state().size(), 3);
  // square_avg is not optional.
  NamedTensors part = full->named_state();
  part.erase(part.begin());
  EXPECT_THAT(error_of([&] { other.load_named_state(part); }, ErrorCode::kMismatch),
              HasSubstr("square_avg.w is missing"));
}

TEST(RMSprop, RefusesOptionsOutOfRange) {
  const NamedTensors p = {{"w", golden::leaf(1, {3})}};
  EXPECT_THAT(error_of([&] { RMSprop(p, {.lr = -1}); }), HasSubstr("[RMSprop]"));
  EXPECT_THAT(error_of([&] { RMSprop(p, {.alpha = 1.5}); }), HasSubstr("1.5"));
  EXPECT_THAT(error_of([&] { RMSprop(p, {.momentum = -0.5}); }), HasSubstr("-0.5"));
}

}  // namespace
}  // namespace lockstep::nn
