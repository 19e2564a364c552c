#include "lockstep/kernels/cpu/exp_below_70.h"

#include <gtest/gtest.h>

#include <limits>

namespace lockstep::kernels {
namespace {

TEST(ExpBelow70, HasTheBitsOfExp) {
  const auto expect_same = [](float x) {
    const auto bits = [](float y) { return std::bit_cast<uint32_t>(y); };
    ASSERT_EQ(bits(exp_below_70(x)), bits(exp(x))) << x;
  };
  // Every exponent and both signs, with scattered mantissas.
  for (uint32_t i = 0; i < 0xff800000u; i += 997) {
    const float x = std::bit_cast<float>(i);
    if (x <= 70.0f) expect_same(x);
  }
  for (int i = -110000; i <= 70000; ++i) expect_same(static_cast<float>(i) * 0.001f);
  expect_same(-std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(exp_below_70(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace lockstep::kernels
