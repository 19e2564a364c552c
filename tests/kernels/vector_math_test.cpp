#include "lockstep/kernels/vector_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/kernels/simd.h"

namespace lockstep::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Floats over the whole range: every exponent, both signs, scattered mantissas.
std::vector<float> all_kinds() {
  std::vector<float> out = {0.0f,  -0.0f,  kInf,    -kInf,   1.0f,   -1.0f, 88.722f, 88.723f,
                            89.0f, -87.3f, -103.9f, -104.1f, 0.625f, 4.0f,  3.9f,    kNan};
  for (uint32_t i = 0; i < 0xff800000u; i += 9973) out.push_back(std::bit_cast<float>(i));
  // Densely where the functions are not yet flat.
  for (int i = -20000; i <= 20000; ++i) out.push_back(static_cast<float>(i) * 0.00053f);
  return out;
}

// Distance in units in the last place of the float nearest to `want`.
double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e9;
  const auto nearest = static_cast<float>(want);
  if (got == nearest) return 0;
  if (std::isinf(nearest) || std::isinf(got)) return 1e9;
  const float size = std::max(std::abs(nearest), std::numeric_limits<float>::min());
  const double unit = std::nextafter(size, kInf) - static_cast<double>(size);
  return std::abs(got - want) / unit;
}

template <class F, class Reference>
void expect_within(double bound, const F& f, const Reference& reference) {
  const std::vector<float> x = all_kinds();
  std::vector<float> y(x.size());
  simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
    const float* in = x.data();
    float* out = y.data();
#pragma omp simd
    for (size_t i = 0; i < x.size(); ++i) out[i] = f(in[i]);
  });
  double worst = 0;
  float where = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = ulps(y[i], reference(static_cast<double>(x[i])));
    if (error > worst) {
      worst = error;
      where = x[i];
    }
  }
  EXPECT_LE(worst, bound) << "at " << where;
  ::testing::Test::RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(VectorMath, ExpIsWithinTwoUnits) {
  expect_within(
      2, [](float x) LOCKSTEP_INLINE_LAMBDA { return exp(x); },
      [](double x) { return std::exp(x); });
}
TEST(VectorMath, Expm1IsWithinThreeUnits) {
  expect_within(
      3, [](float x) LOCKSTEP_INLINE_LAMBDA { return expm1(x); },
      [](double x) { return std::expm1(x); });
}
TEST(VectorMath, LogIsWithinTwoUnits) {
  expect_within(
      2, [](float x) LOCKSTEP_INLINE_LAMBDA { return log(x); },
      [](double x) { return std::log(x); });
}
TEST(VectorMath, Log1pIsWithinThreeUnits) {
  expect_within(
      3, [](float x) LOCKSTEP_INLINE_LAMBDA { return log1p(x); },
      [](double x) { return std::log1p(x); });
}
TEST(VectorMath, TanhIsWithinTwoUnits) {
  expect_within(
      2, [](float x) LOCKSTEP_INLINE_LAMBDA { return tanh(x); },
      [](double x) { return std::tanh(x); });
}
TEST(VectorMath, SigmoidIsWithinThreeUnits) {
  expect_within(
      3, [](float x) LOCKSTEP_INLINE_LAMBDA { return sigmoid(x); },
      [](double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); });
}
TEST(VectorMath, ErfIsWithinTwoUnits) {
  expect_within(
      2, [](float x) LOCKSTEP_INLINE_LAMBDA { return erf(x); },
      [](double x) { return std::erf(x); });
}

TEST(VectorMath, ExpBelow70HasTheBitsOfExp) {
  for (const float x : all_kinds()) {
    if (x > 70.0f) continue;
    const float below = exp_below_70(x);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(below));
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(below), std::bit_cast<uint32_t>(exp(x))) << x;
    }
  }
}

TEST(VectorMath, SignsOfZeroAreKept) {
  EXPECT_TRUE(std::signbit(tanh(-0.0f)));
  EXPECT_TRUE(std::signbit(erf(-0.0f)));
  EXPECT_TRUE(std::signbit(expm1(-0.0f)));
  EXPECT_TRUE(std::signbit(log1p(-0.0f)));
  EXPECT_EQ(sign(-0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(sign(kNan)));
}

TEST(VectorMath, TheBitsDoNotDependOnTheProcessorsVectors) {
  const std::vector<float> x = all_kinds();
  const auto all = [](float v) LOCKSTEP_INLINE_LAMBDA {
    return exp(v) + tanh(v) + erf(v) + log(abs(v)) + sigmoid(v) + expm1(v);
  };
  std::vector<float> y(x.size());
  simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
    const float* in = x.data();
    float* out = y.data();
#pragma omp simd
    for (size_t i = 0; i < x.size(); ++i) out[i] = all(in[i]);
  });
  for (size_t i = 0; i < x.size(); ++i) {
    const float alone = all(x[i]);
    ASSERT_TRUE(std::bit_cast<uint32_t>(alone) == std::bit_cast<uint32_t>(y[i]) ||
                (std::isnan(alone) && std::isnan(y[i])))
        << x[i];
  }
}

}  // namespace
}  // namespace lockstep::kernels
