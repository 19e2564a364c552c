#include "lockstep/nn/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
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

// Holds the rates of Schedule(options), at a base rate of 0.5, to PyTorch's.
template <class S, class Options>
void expect_rates(const std::string& name, const Options& options) {
  SGD optimizer(one_parameter("w"), {.lr = 0.5});
  S schedule(optimizer, options);
  for (const double lr : golden::values(name)) {
    EXPECT_NEAR(optimizer.lr(), lr, 1e-14) << name << " after " << schedule.steps() << " steps";
    schedule.step();
  }
}

TEST(Schedule, MoreSchedulesHavePyTorchsRates) {
  expect_rates<MultiStepLR>("multi_step_lr",
                            MultiStepLROptions{.milestones = {2, 5, 5, 9}, .gamma = 0.3});
  expect_rates<LinearLR>("linear_lr",
                         LinearLROptions{.start_factor = 0.1, .end_factor = 0.8, .total_iters = 4});
  expect_rates<ExponentialLR>("exponential_lr", ExponentialLROptions{.gamma = 0.9});
  expect_rates<OneCycleLR>("one_cycle_lr.cos", OneCycleLROptions{.total_steps = 11});
  expect_rates<OneCycleLR>("one_cycle_lr.linear", OneCycleLROptions{.total_steps = 11,
                                                                    .pct_start = 0.4,
                                                                    .cosine = false,
                                                                    .div_factor = 10,
                                                                    .final_div_factor = 100});
}

TEST(Schedule, OneCycleStaysAtItsLastRate) {
  SGD optimizer(one_parameter("w"), {.lr = 0.5});
  OneCycleLR schedule(optimizer, {.total_steps = 4});
  for (int i = 0; i < 3; ++i) schedule.step();
  const double last = optimizer.lr();
  EXPECT_NEAR(last, 0.5 / 25 / 1e4, 1e-15);
  schedule.step();
  EXPECT_EQ(optimizer.lr(), last);
}

constexpr double kMetrics[] = {3, 2, 2.1, 1.9999, 2.5, 2.5, 1, 1.2};
double metric(size_t i) { return kMetrics[std::min<size_t>(i, 7)]; }

TEST(Schedule, PlateausHavePyTorchsRates) {
  const auto expect = [](const std::string& name, const ReduceLROnPlateauOptions& options) {
    SGD optimizer(one_parameter("w"), {.lr = 0.5});
    ReduceLROnPlateau schedule(optimizer, options);
    const std::vector<double> rates = golden::values(name);
    for (size_t i = 0; i < rates.size(); ++i) {
      EXPECT_NEAR(optimizer.lr(), rates[i], 1e-15) << name << " after " << i << " steps";
      schedule.step(metric(i));
    }
  };
  expect("plateau.min", {.factor = 0.5, .patience = 1});
  expect("plateau.max", {.maximize = true,
                         .factor = 0.5,
                         .patience = 0,
                         .threshold = 0.1,
                         .relative = false,
                         .cooldown = 2,
                         .min_lr = 0.1});
}

TEST(Schedule, APlateauGoesOnFromItsState) {
  SGD first(one_parameter("w"), {.lr = 0.5});
  ReduceLROnPlateau whole(first, {.factor = 0.5, .patience = 1, .cooldown = 1});
  for (size_t i = 0; i < 6; ++i) whole.step(metric(i));
  SGD second(one_parameter("w"), {.lr = 0.1});
  ReduceLROnPlateau resumed(second, {.factor = 0.5, .patience = 1, .cooldown = 1});
  resumed.load_named_state(whole.named_state());
  for (size_t i = 6; i < 16; ++i) {
    EXPECT_EQ(second.lr(), first.lr()) << i;
    whole.step(metric(i));
    resumed.step(metric(i));
  }
  EXPECT_LT(first.lr(), 0.1);
  EXPECT_EQ(error_of(
                [&] {
                  resumed.load_named_state({{"steps", 1}});
                },
                ErrorCode::kMismatch)
                .empty(),
            false);
}

TEST(Schedule, ANanIsNoImprovement) {
  SGD optimizer(one_parameter("w"), {.lr = 0.5});
  ReduceLROnPlateau schedule(optimizer, {.factor = 0.5, .patience = 0});
  schedule.step(std::nan(""));
  EXPECT_EQ(optimizer.lr(), 0.25);
  schedule.step(3);
  schedule.step(std::nan(""));
  EXPECT_EQ(optimizer.lr(), 0.125);
}

TEST(Schedule, RefuseOptionsOutOfRange) {
  SGD optimizer(one_parameter("w"), {.lr = 0.5});
  error_of([&] { MultiStepLR(optimizer, {.milestones = {5, 2}}); });
  error_of([&] { ExponentialLR(optimizer, {.gamma = -1}); });
  error_of([&] { LinearLR(optimizer, {.total_iters = 0}); });
  error_of([&] { OneCycleLR(optimizer, {.total_steps = 1}); });
  error_of([&] { OneCycleLR(optimizer, {.total_steps = 5, .pct_start = 1.5}); });
  error_of([&] { ReduceLROnPlateau(optimizer, {.factor = 1}); });
  EXPECT_EQ(optimizer.lr(), 0.5);
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
