#include "lockstep/kernels/block_quant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/kernels/launch.h"

namespace lockstep::kernels {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

struct Quantized {
  std::vector<float> left, scales;
  std::vector<int8_t> codes;
};

Quantized quantize(std::vector<float> values, int64_t block) {
  const auto count = static_cast<int64_t>(values.size());
  const int64_t blocks = quant_blocks(count, block);
  Quantized out{std::move(values), std::vector<float>(static_cast<size_t>(blocks)),
                std::vector<int8_t>(static_cast<size_t>(count))};
  launch<BlockQuantize>(kCpu, View{out.left.data(), DType::kF32, kCpu, {count}, {1}}, block,
                        View{out.scales.data(), DType::kF32, kCpu, {1, blocks}, {blocks, 1}},
                        View{out.codes.data(), DType::kI8, kCpu, {1, count}, {count, 1}});
  return out;
}

TEST(BlockQuantize, GivesEachBlockAScaleOfItsGreatestMagnitude) {
  const Quantized q = quantize({1, -127, 63.25f, 0, 0, 2.54f, -1.27f}, 3);
  EXPECT_THAT(q.scales, ElementsAre(1, 2.54f / 127, 1.27f / 127));
  EXPECT_THAT(q.codes, ElementsAre(1, -127, 63, 0, 0, 127, -127));
  EXPECT_EQ(q.left[2], 0.25f);
}

TEST(BlockQuantize, WhatIsLeftIsWhatCodesLose) {
  std::vector<float> values;
  for (int i = 0; i < 1003; ++i) values.push_back(std::sin(static_cast<float>(i)) * 1e-3f);
  const Quantized q = quantize(values, 64);
  for (size_t i = 0; i < values.size(); ++i) {
    const float stands_for = static_cast<float>(q.codes[i]) * q.scales[i / 64];
    EXPECT_EQ(q.left[i], values[i] - stands_for);
    EXPECT_LE(std::abs(q.left[i]), q.scales[i / 64] * 0.5001f);
  }
}

TEST(BlockQuantize, ZerosAndMagnitudesWithoutAScaleHaveTheCodeZeroAndStay) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const Quantized q = quantize({0, -0.0f, tiny, 30 * tiny}, 2);
  EXPECT_THAT(q.codes, Each(0));
  EXPECT_THAT(q.left, ElementsAre(0, 0, tiny, 30 * tiny));
}

TEST(BlockQuantize, AValueThatIsNotFiniteSpoilsItsBlockAlone) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Quantized q = quantize({1, -bad, 2, 3, 4}, 3);
    EXPECT_TRUE(std::isnan(q.scales[0]));
    EXPECT_EQ(q.scales[1], 4.0f / 127);
    EXPECT_THAT(q.left, ElementsAre(0, 0, 0, 3 - 95 * (4.0f / 127), 4 - 127 * (4.0f / 127)));
  }
}

TEST(BlockDequantizeMean, AveragesInTheOrderOfRanks) {
  std::vector<float> scales = {1, 10, 99, 2, 0.5f, 99};  // rows of two that lie three apart
  std::vector<int8_t> codes = {1, -2, 3, 4, 0, 5, 6, -7, 8, 0};
  std::vector<float> mean(4);
  launch<BlockDequantizeMean>(kCpu, View{scales.data(), DType::kF32, kCpu, {2, 2}, {3, 1}},
                              View{codes.data(), DType::kI8, kCpu, {2, 4}, {5, 1}}, 3,
                              View{mean.data(), DType::kF32, kCpu, {4}, {1}});
  EXPECT_THAT(mean, ElementsAre(5.5f, 5, -5.5f, 22));
}

}  // namespace
}  // namespace lockstep::kernels
