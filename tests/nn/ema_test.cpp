#include "lockstep/nn/ema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/core/ops.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/sequential.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Sequential> net() {
  auto out = std::make_shared<Sequential>(std::make_shared<Linear>(3, 2),
                                          std::make_shared<BatchNorm1d>(2));
  out->to(DType::kF64);
  return out;
}

Tensor weight_of(const Module& module) { return module.named_parameters()[0].second; }

TEST(ExponentialMovingAverage, FollowsTheParametersAndCopiesTheBuffers) {
  const auto model = net();
  ExponentialMovingAverage average(*model, 0.75);
  std::vector<double> want;
  for (int step = 0; step < 4; ++step) {
    Tensor weight = weight_of(*model);
    assign(weight, golden::wave(step, {2, 3}));
    (*model)(golden::wave(50 + step, {5, 3}));  // moves the buffers
    average.update();
    const std::vector<double> now = weight.to_vector<double>();
    if (step == 0) want = now;
    for (size_t i = 0; i < want.size(); ++i) want[i] = 0.75 * want[i] + 0.25 * now[i];
  }
  EXPECT_EQ(average.updates(), 4);
  const NamedTensors state = average.named_state();
  EXPECT_THAT(state[0].second.to_vector<double>(),
              ::testing::Pointwise(::testing::DoubleNear(1e-15), want));
  for (const auto& [name, buffer] : model->named_buffers()) {
    for (const auto& [key, value] : state) {
      if (key != name) continue;
      EXPECT_EQ(sum(value - buffer).item(), 0) << name;
    }
  }
}

TEST(ExponentialMovingAverage, SwapsThereAndBack) {
  const auto model = net();
  ExponentialMovingAverage average(*model, 0.5);
  average.update();
  Tensor weight = weight_of(*model);
  const std::vector<double> first = weight.to_vector<double>();
  assign(weight, golden::wave(7, {2, 3}));
  const std::vector<double> second = weight.to_vector<double>();
  average.swap();
  EXPECT_EQ(weight.to_vector<double>(), first);
  EXPECT_EQ(average.named_state()[0].second.to_vector<double>(), first);
  EXPECT_THAT(error_of([&] { average.update(); }), HasSubstr("swap() back"));
  average.swap();
  EXPECT_EQ(weight.to_vector<double>(), second);
}

TEST(ExponentialMovingAverage, GoesOnFromItsState) {
  const auto model = net();
  ExponentialMovingAverage average(*model, 0.5);
  average.update();
  const auto other = net();
  ExponentialMovingAverage loaded(*other, 0.5);
  loaded.load_named_state(average.named_state());
  EXPECT_EQ(loaded.updates(), 1);
  EXPECT_EQ(loaded.named_state()[0].second.to_vector<double>(),
            weight_of(*model).to_vector<double>());
  EXPECT_NE(weight_of(*other).to_vector<double>(), weight_of(*model).to_vector<double>());
}

TEST(ExponentialMovingAverage, ListsWhatDoesNotFitAndChangesNothing) {
  const auto model = net();
  ExponentialMovingAverage average(*model);
  NamedTensors state = average.named_state();
  state[0].second = Tensor::zeros({3, 2}, {DType::kF64});
  state[1].first = "other";
  const std::string error =
      error_of([&] { average.load_named_state(state); }, ErrorCode::kMismatch);
  EXPECT_THAT(error, HasSubstr("0.weight: want f64 (2, 3), got f64 (3, 2)"));
  EXPECT_THAT(error, HasSubstr("0.bias: want f64 (2), got nothing"));
  EXPECT_THAT(error, HasSubstr("other is unexpected"));
  EXPECT_EQ(average.named_state()[0].second.to_vector<double>(),
            weight_of(*model).to_vector<double>());
  EXPECT_THAT(error_of([&] { ExponentialMovingAverage(*model, 1.5); }), HasSubstr("1.5"));
}

}  // namespace
}  // namespace lockstep::nn
