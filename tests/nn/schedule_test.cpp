#include "lockstep/nn/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "layers.h"

namespace lockstep::nn {
namespace {

NamedTensors one_parameter(const char* name) {
  return {{name, Tensor::ones({2}).set_requires_grad()}};
}

TEST(Schedule, StepLRFallsByGammaEveryStepSize) {
  SGD optimizer(one_parameter("w"), {.lr = 0.5});
  StepLR schedule(optimizer, {.step_size = 3, .gamma = 0.1});
  const double expected[] = {0.5, 0.5, 0.5, 0.05, 0.05, 0.05, 0.005, 0.005, 0.005, 0.0005};
  for (const double lr : expected) {
    EXPECT_NEAR(optimizer.lr(), lr, 1e-15);
    schedule.step();
  }
  EXPECT_EQ(schedule.steps(), 10);
}

TEST(Schedule, CosineGoesFromTheBaseRateToEtaMinAndStays) {
  SGD optimizer(one_parameter("w"), {.lr = 0.8});
  CosineAnnealingLR schedule(optimizer, {.t_max = 8, .eta_min = 0.2});
  const double root = std::sqrt(0.5);
  const std::pair<int64_t, double> expected[] = {
      {0, 0.8}, {2, 0.5 + 0.3 * root}, {4, 0.5}, {6, 0.5 - 0.3 * root}, {8, 0.2}, {9, 0.2}};
  for (const auto& [steps, lr] : expected) {
    while (schedule.steps() < steps) schedule.step();
    EXPECT_NEAR(optimizer.lr(), lr, 1e-15) << "after " << steps << " steps";
  }
}

TEST(Schedule, HasPyTorchsRates) {
  SGD first(one_parameter("w"), {.lr = 0.5});
  StepLR steps(first, {.step_size = 3, .gamma = 0.3});
  for (const double lr : golden::values("step_lr")) {
    EXPECT_NEAR(first.lr(), lr, 1e-15);
    steps.step();
  }
  SGD second(one_parameter("w"), {.lr = 0.5});
  CosineAnnealingLR cosine(second, {.t_max = 9, .eta_min = 0.01});
  for (const double lr : golden::values("cosine")) {
    EXPECT_NEAR(second.lr(), lr, 1e-15);
    cosine.step();
  }
}

TEST(Schedule, WarmUpRisesInALineToTheBaseRateAndTheCosineStartsThere) {
  SGD optimizer(one_parameter("w"), {.lr = 0.5});
  CosineAnnealingLR schedule(optimizer, {.t_max = 14, .warmup_steps = 4});
  std::vector<double> lrs;
  for (int i = 0; i < 15; ++i) {
    lrs.push_back(optimizer.lr());
    schedule.step();
  }
  EXPECT_NEAR(lrs[0], 0.1, 1e-15);
  EXPECT_NEAR(lrs[3], 0.4, 1e-15);
  EXPECT_NEAR(lrs[4], 0.5, 1e-15);
  EXPECT_NEAR(lrs[9], 0.25, 1e-15);
  EXPECT_NEAR(lrs[14], 0, 1e-15);
}

TEST(Schedule, EachGroupKeepsItsOwnBaseRate) {
  SGD optimizer(one_parameter("a"), {.lr = 1});
  optimizer.add_group(one_parameter("b"), {.lr = 0.01});
  StepLR schedule(optimizer, {.step_size = 1, .gamma = 0.5});
  schedule.step();
  EXPECT_DOUBLE_EQ(optimizer.lr(0), 0.5);
  EXPECT_DOUBLE_EQ(optimizer.lr(1), 0.005);
}

TEST(Schedule, ARateDependsOnTheStepAloneAndNotOnWhatWasSetBetween) {
  SGD optimizer(one_parameter("w"), {.lr = 0.5});
  CosineAnnealingLR schedule(optimizer, {.t_max = 10});
  schedule.step();
  optimizer.set_lr(123);
  schedule.step();
  EXPECT_DOUBLE_EQ(optimizer.lr(), schedule.lr_at(0.5, 2));
}

TEST(Schedule, StateGoesIntoAScheduleMadeWithAnotherRate) {
  SGD optimizer(one_parameter("w"), {.lr = 0.5});
  CosineAnnealingLR schedule(optimizer, {.t_max = 10, .warmup_steps = 2});
  for (int i = 0; i < 5; ++i) schedule.step();
  SGD resumed(one_parameter("w"), {.lr = 0.1});
  CosineAnnealingLR other(resumed, {.t_max = 10, .warmup_steps = 2});
  other.load_named_state(schedule.named_state());
  EXPECT_EQ(other.steps(), 5);
  EXPECT_EQ(resumed.lr(), optimizer.lr());
  schedule.step();
  other.step();
  EXPECT_EQ(resumed.lr(), optimizer.lr());
}

TEST(Schedule, StateThatDoesNotFitChangesNothing) {
  SGD optimizer(one_parameter("w"), {.lr = 0.5});
  StepLR schedule(optimizer, {.step_size = 2, .gamma = 0.1});
  schedule.step();
  const NamedNumbers bad[] = {{},
                              {{"steps", 3}},
                              {{"steps", 3}, {"base_lr.0", 0.5}, {"base_lr.1", 0.5}},
                              {{"steps", 3}, {"base_lr.1", 0.5}},
                              {{"steps", 3.5}, {"base_lr.0", 0.5}},
                              {{"steps", -1}, {"base_lr.0", 0.5}},
                              {{"steps", 1e300}, {"base_lr.0", 0.5}},
                              {{"steps", std::nan("")}, {"base_lr.0", 0.5}},
                              {{"steps", 3}, {"base_lr.0", std::nan("")}}};
  for (const NamedNumbers& state : bad) {
    try {
      schedule.load_named_state(state);
      FAIL() << "loaded " << state.size() << " values";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    }
    EXPECT_EQ(schedule.steps(), 1);
    EXPECT_EQ(optimizer.lr(), 0.5);
  }
}

TEST(Schedule, RefusesOptionsOutOfRange) {
  SGD optimizer(one_parameter("w"), {.lr = 0.5});
  EXPECT_THROW(StepLR(optimizer, {.step_size = 0}), Error);
  EXPECT_THROW(StepLR(optimizer, {.step_size = 1, .gamma = -1}), Error);
  EXPECT_THROW(CosineAnnealingLR(optimizer, {.t_max = 0}), Error);
  EXPECT_THROW(CosineAnnealingLR(optimizer, {.t_max = 4, .warmup_steps = 4}), Error);
  EXPECT_THROW(CosineAnnealingLR(optimizer, {.t_max = 4, .warmup_steps = -1}), Error);
  EXPECT_EQ(optimizer.lr(), 0.5);
}

TEST(Schedule, AGroupAddedLaterIsAnError) {
  SGD optimizer(one_parameter("a"), {.lr = 1});
  StepLR schedule(optimizer, {.step_size = 1, .gamma = 0.5});
  optimizer.add_group(one_parameter("b"), {.lr = 0.01});
  EXPECT_THROW(schedule.step(), Error);
}

}  // namespace
}  // namespace lockstep::nn
