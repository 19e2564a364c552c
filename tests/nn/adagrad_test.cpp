#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/nn/optim.h"
#include "steps.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

TEST(Adagrad, TakesPyTorchsSteps) {
  const auto expect = [](const std::string& name, const AdagradOptions& options) {
    expect_golden_steps(
        name, [options](NamedTensors p) { return std::make_unique<Adagrad>(p, options); });
  };
  expect("adagrad.plain", {});
  expect("adagrad.decay", {.lr = 0.1,
                           .lr_decay = 0.05,
                           .weight_decay = 0.1,
                           .initial_accumulator_value = 0.3,
                           .eps = 1e-4});
}

TEST(Adagrad, RefusesOptionsOutOfRange) {
  const NamedTensors p = {{"w", golden::leaf(1, {3})}};
  EXPECT_THAT(error_of([&] { Adagrad(p, {.lr = -1}); }), HasSubstr("[Adagrad] want a lr"));
  EXPECT_THAT(error_of([&] { Adagrad(p, {.lr_decay = -0.1}); }), HasSubstr("-0.1"));
}

}  // namespace
}  // namespace lockstep::nn
