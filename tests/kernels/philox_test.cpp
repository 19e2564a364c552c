#include "lockstep/kernels/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

using Words = std::array<uint32_t, 4>;

// The known answers of the paper's own library (Random123, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

struct Fill {
  const char* name;
  void (*run)(const View& x, uint64_t seed, uint64_t offset);
  std::vector<DType> dtypes;
};

std::vector<DType> all_dtypes() {
  std::vector<DType> out;
  for (int code = 0; code < kDTypeCount; ++code) out.push_back(static_cast<DType>(code));
  return out;
}

std::vector<Fill> fills() {
  const std::vector<DType> floats(std::begin(kFloats), std::end(kFloats));
  std::vector<DType> numbers = all_dtypes();
  std::erase(numbers, DType::kBool);
  return {
      {"uniform", Uniform::cpu, floats},
      {"normal", Normal::cpu, floats},
      {"randint",
       [](const View& x, uint64_t seed, uint64_t offset) {
         RandInt::cpu(x, -9, 100, seed, offset);
       },
       numbers},
      {"bernoulli",
       [](const View& x, uint64_t seed, uint64_t offset) { Bernoulli::cpu(x, 0.3, seed, offset); },
       all_dtypes()}};
}

TEST(Fills, AnElementDependsOnSeedAndItsNumberAlone) {
  const uint64_t seed = 0x123456789abcdefu;
  const uint64_t start = (uint64_t{1} << 33) + 5;
  for (const Fill& fill : fills()) {
    for (DType dtype : fill.dtypes) {
      SCOPED_TRACE(std::string(fill.name) + " " + std::string(name(dtype)));
      const Array all = empty(dtype, {3000});
      fill.run(all.view, seed, start);
      for (const Shape& shape : {Shape{7, 11, 13}, Shape{1, 1}, Shape{2}, Shape{1027}, Shape{}}) {
        for (const Strides& strides : some_strides(shape)) {
          for (uint64_t shift : {0u, 1u, 512u, 777u}) {
            const Array x = empty(dtype, shape, strides);
            fill.run(x.view, seed, start + shift);
            for (int64_t i = 0; i < x.numel(); ++i) {
              ASSERT_EQ(x.get(i), all.get(i + static_cast<int64_t>(shift))) << i;
            }
          }
        }
      }
      const Array other = empty(dtype, {3000});
      fill.run(other.view, seed + (uint64_t{1} << 40), start);
      EXPECT_NE(other.values(), all.values());
      fill.run(other.view, seed, start + 3000);
      EXPECT_NE(other.values(), all.values());
    }
  }
}

TEST(Fills, SeveralThreadsGiveTheSame) {
  for (const Fill& fill : fills()) {
    std::vector<std::vector<double>> results;
    for (int threads : {1, 3}) {
      set_num_threads(threads);
      const Array x = empty(DType::kF32, {100001});
      fill.run(x.view, 3, 7);
      results.push_back(x.values());
    }
    set_num_threads(0);
    EXPECT_EQ(results[0], results[1]) << fill.name;
  }
}

struct Moments {
  double mean = 0;
  double variance = 0;
  double skew = 0;
  double kurtosis = 0;
  double neighbours = 0;  // the correlation of each with the next
};

Moments moments(const std::vector<double>& x) {
  Moments out;
  const auto n = static_cast<double>(x.size());
  for (double v : x) out.mean += v / n;
  for (double v : x) out.variance += (v - out.mean) * (v - out.mean) / n;
  const double scale = 1 / std::sqrt(out.variance);
  for (size_t i = 0; i < x.size(); ++i) {
    const double z = (x[i] - out.mean) * scale;
    out.skew += z * z * z / n;
    out.kurtosis += z * z * z * z / n;
    if (i > 0) out.neighbours += z * (x[i - 1] - out.mean) * scale / n;
  }
  return out;
}

// Five standard errors of a statistic whose terms have deviation `sigma`.
double five_errors(double sigma, int64_t n) {
  return 5 * sigma / std::sqrt(static_cast<double>(n));
}

constexpr int64_t kMany = 100000;

TEST(Uniform, IsEvenWithinZeroToOne) {
  const std::map<DType, double> steps = {
      {DType::kF32, 0x1p24}, {DType::kF64, 0x1p53}, {DType::kF16, 0x1p11}, {DType::kBF16, 0x1p8}};
  for (DType dtype : kFloats) {
    const Array x = empty(dtype, {kMany});
    Uniform::cpu(x.view, 11, 0);
    const std::vector<double> values = x.values();
    std::vector<double> counts(16);
    bool finest = false;
    for (double v : values) {
      ASSERT_TRUE(v >= 0 && v < 1) << v;
      const double step = v * steps.at(dtype);
      ASSERT_EQ(step, std::floor(step)) << v;
      finest = finest || std::fmod(step, 2) == 1;
      ++counts[static_cast<size_t>(v * 16)];
    }
    EXPECT_TRUE(finest) << "the lowest bit is never set";
    for (double count : counts) {
      EXPECT_NEAR(count / kMany, 1.0 / 16, five_errors(0.25, kMany));
    }
    const Moments m = moments(values);
    EXPECT_NEAR(m.variance, 1.0 / 12, five_errors(0.08, kMany));
    EXPECT_NEAR(m.neighbours, 0, five_errors(1, kMany));
  }
}

TEST(Normal, HasTheMomentsAndTailsOfTheDistribution) {
  for (DType dtype : kFloats) {
    const Array x = empty(dtype, {kMany});
    Normal::cpu(x.view, 12, 0);
    const std::vector<double> values = x.values();
    const Moments m = moments(values);
    EXPECT_NEAR(m.mean, 0, five_errors(1, kMany));
    EXPECT_NEAR(m.variance, 1, five_errors(std::sqrt(2), kMany));
    EXPECT_NEAR(m.skew, 0, five_errors(std::sqrt(6), kMany));
    EXPECT_NEAR(m.kurtosis, 3, five_errors(std::sqrt(24), kMany));
    EXPECT_NEAR(m.neighbours, 0, five_errors(1, kMany));
    for (double bound : {-2.0, -1.0, -0.25, 0.5, 1.5, 3.0}) {
      const auto below = static_cast<double>(
          std::count_if(values.begin(), values.end(), [&](double v) { return v < bound; }));
      const double want = 0.5 * std::erfc(-bound / std::sqrt(2));
      EXPECT_NEAR(below / kMany, want, five_errors(0.5, kMany) + epsilon(dtype)) << bound;
    }
  }
}

// The transform itself, from the bits that the generator gives.
TEST(Normal, IsBoxAndMullersTransform) {
  const uint64_t seed = 99;
  const Array x = empty(DType::kF64, {4096});
  Normal::cpu(x.view, seed, 0);
  for (int64_t i = 0; i < x.numel(); i += 2) {
    const Words w =
        philox4x32({static_cast<uint32_t>(i / 2), 0, 0, 0}, {static_cast<uint32_t>(seed), 0});
    const auto unit = [](uint32_t low, uint32_t high) {
      return static_cast<double>((uint64_t{high} << 32 | low) >> 12) * 0x1p-52;
    };
    const double radius = std::sqrt(-2 * std::log(1 - unit(w[0], w[1])));
    const double angle = 2 * std::acos(-1.0) * unit(w[2], w[3]);
    ASSERT_NEAR(x.get(i), radius * std::cos(angle), 1e-14);
    ASSERT_NEAR(x.get(i + 1), radius * std::sin(angle), 1e-14);
  }
}

TEST(RandInt, IsEvenOverItsRange) {
  for (DType dtype : {DType::kI64, DType::kI32, DType::kI8, DType::kF32, DType::kBF16}) {
    const Array x = empty(dtype, {kMany});
    RandInt::cpu(x.view, -3, 4, 5, 0);
    std::map<double, double> counts;
    for (double v : x.values()) ++counts[v];
    ASSERT_EQ(counts.size(), 7u);
    EXPECT_EQ(counts.begin()->first, -3);
    EXPECT_EQ(counts.rbegin()->first, 3);
    for (const auto& [value, count] : counts) {
      EXPECT_NEAR(count / kMany, 1.0 / 7, five_errors(0.35, kMany)) << value;
    }
  }
}

TEST(RandInt, ReachesOverAllOfSixtyFourBits) {
  const Array x = empty(DType::kI64, {1000});
  RandInt::cpu(x.view, INT64_MIN, INT64_MAX, 5, 0);
  const auto* values = x.view.as<int64_t>();
  EXPECT_LT(*std::min_element(values, values + 1000), INT64_MIN / 100 * 98);
  EXPECT_GT(*std::max_element(values, values + 1000), INT64_MAX / 100 * 98);
  RandInt::cpu(x.view, 8, 9, 5, 0);
  EXPECT_EQ(x.values(), std::vector<double>(1000, 8));
  EXPECT_THROW(RandInt::cpu(x.view, 8, 8, 5, 0), Error);
  EXPECT_THROW(RandInt::cpu(empty(DType::kBool, {3}).view, 0, 2, 5, 0), Error);
}

TEST(Bernoulli, IsOneWithTheProbability) {
  for (DType dtype : all_dtypes()) {
    for (double p : {0.0, 0.1, 0.5, 0.99, 1.0}) {
      const Array x = empty(dtype, {kMany});
      Bernoulli::cpu(x.view, p, 6, 0);
      const std::vector<double> values = x.values();
      for (double v : values) ASSERT_TRUE(v == 0 || v == 1);
      const auto ones = static_cast<double>(std::count(values.begin(), values.end(), 1));
      EXPECT_NEAR(ones / kMany, p, five_errors(std::sqrt(p * (1 - p)), kMany)) << p;
    }
  }
  const Array x = empty(DType::kF32, {3});
  for (double p : {-0.1, 1.1, kNan}) EXPECT_THROW(Bernoulli::cpu(x.view, p, 6, 0), Error);
}

}  // namespace
}  // namespace lockstep::kernels
