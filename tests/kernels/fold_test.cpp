#include "lockstep/kernels/fold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lockstep/kernels/error.h"

namespace lockstep::kernels {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kF16,  DType::kBF16, DType::kI64,
                             DType::kI32, DType::kU8,  DType::kBool, DType::kI8};
constexpr FoldOp kOps[] = {FoldOp::kSum,     FoldOp::kAvg, FoldOp::kMin, FoldOp::kMax,
                           FoldOp::kProduct, FoldOp::kAnd, FoldOp::kOr};

// Any bits of every dtype are a value of it, bool's included: a byte that is not 0 is true.
std::vector<std::byte> random_bits(size_t bytes, uint64_t seed) {
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    byte = static_cast<std::byte>(seed >> 56);
  }
  return out;
}

class Folds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Folds, ::testing::Values(1, 2, 3, 4, 7));

class FoldsOfSteps : public ::testing::TestWithParam<int> {};  // one rank has no steps
INSTANTIATE_TEST_SUITE_P(Ranks, FoldsOfSteps, ::testing::Values(2, 3, 4, 7));

TEST_P(FoldsOfSteps, AreTheFoldAtOnceBitForBit) {
  const int ranks = GetParam();
  constexpr int64_t kCount = 2501;
  for (const DType dtype : kDTypes) {
    const size_t bytes = kCount * size_of(dtype);
    std::vector<std::vector<std::byte>> inputs;
    std::vector<const void*> sources;
    for (int r = 0; r < ranks; ++r) inputs.push_back(random_bits(bytes, static_cast<uint64_t>(r)));
    for (const auto& input : inputs) sources.push_back(input.data());
    for (const FoldOp op : kOps) {
      if (!is_defined(op, dtype)) continue;
      const FoldSpec spec{dtype, op, ranks};
      std::vector<std::byte> at_once(bytes);
      void* output = at_once.data();
      Fold::cpu(spec, sources.data(), &output, 1, kCount);

      std::vector<std::byte> partial(kCount * partial_size(dtype, op));
      std::vector<std::byte> stepped(bytes);
      FoldBegin::cpu(spec, sources[0], partial.data(), kCount);
      if (partial_is_input(dtype, op)) {
        EXPECT_EQ(std::memcmp(partial.data(), sources[0], bytes), 0) << name(dtype) << name(op);
      }
      for (int r = 1; r < ranks - 1; ++r) {
        FoldStep::cpu(spec, partial.data(), sources[r], partial.data(), kCount);
      }
      FoldFinish::cpu(spec, partial.data(), sources[ranks - 1], stepped.data(), kCount);
      EXPECT_EQ(stepped, at_once) << name(dtype) << " " << name(op);
    }
  }
}

TEST_P(Folds, DoNotDependOnHowACallIsCut) {
  const int ranks = GetParam();
  constexpr int64_t kCount = 1537;
  for (const DType dtype : kDTypes) {
    const size_t element = size_of(dtype);
    std::vector<std::vector<std::byte>> inputs;
    for (int r = 0; r < ranks; ++r) {
      inputs.push_back(random_bits(kCount * element, static_cast<uint64_t>(r + 50)));
    }
    for (const FoldOp op : kOps) {
      if (!is_defined(op, dtype)) continue;
      std::vector<const void*> sources;
      for (const auto& input : inputs) sources.push_back(input.data());
      std::vector<std::byte> whole(kCount * element);
      std::vector<std::byte> second(whole.size());
      void* outputs[2] = {whole.data(), second.data()};
      Fold::cpu({dtype, op, ranks}, sources.data(), outputs, 2, kCount);
      EXPECT_EQ(second, whole) << "outputs are the same";
      std::vector<std::byte> cut(whole.size());
      for (int64_t first = 0; first < kCount; first += 13) {
        const int64_t count = std::min<int64_t>(13, kCount - first);
        for (int r = 0; r < ranks; ++r) sources[r] = inputs[r].data() + first * element;
        void* output = cut.data() + first * element;
        Fold::cpu({dtype, op, ranks}, sources.data(), &output, 1, count);
      }
      EXPECT_EQ(cut, whole) << name(dtype) << " " << name(op);
    }
  }
}

TEST_P(Folds, MayWriteOverAnyInput) {
  const int ranks = GetParam();
  constexpr int64_t kCount = 1500;
  for (int target = 0; target < ranks; ++target) {
    std::vector<std::vector<float>> inputs;
    std::vector<const void*> sources;
    std::vector<float> want(kCount);
    for (int r = 0; r < ranks; ++r) {
      inputs.emplace_back(kCount);
      for (int64_t i = 0; i < kCount; ++i) {
        inputs[r][i] = static_cast<float>(i % 31 + 100 * r);
        want[i] += inputs[r][i];
      }
    }
    for (const auto& input : inputs) sources.push_back(input.data());
    void* output = inputs[target].data();
    Fold::cpu({DType::kF32, FoldOp::kSum, ranks}, sources.data(), &output, 1, kCount);
    EXPECT_EQ(inputs[target], want);
  }
}

template <class T>
T fold_of(const std::vector<T>& values, DType dtype, FoldOp op) {
  std::vector<const void*> sources;
  for (const T& value : values) sources.push_back(&value);
  T out{};
  void* output = &out;
  Fold::cpu({dtype, op, static_cast<int>(values.size())}, sources.data(), &output, 1, 1);
  return out;
}

TEST(Fold, SixteenBitFloatsRoundAsTheirTypesDo) {
  // One rank: the value passes through f32 and is rounded once; every half must come back.
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Half half;
    half.bits = static_cast<uint16_t>(bits);
    const Half got = fold_of<Half>({half}, DType::kF16, FoldOp::kSum);
    BFloat16 brain;
    brain.bits = static_cast<uint16_t>(bits);
    const BFloat16 same = fold_of<BFloat16>({brain}, DType::kBF16, FoldOp::kSum);
    if (std::isnan(static_cast<float>(half))) {
      ASSERT_EQ(got.bits, 0x7e00);
    } else {
      ASSERT_EQ(got.bits, half.bits);
    }
    if (std::isnan(static_cast<float>(brain))) {
      ASSERT_EQ(same.bits, 0x7fc0);
    } else {
      ASSERT_EQ(same.bits, brain.bits);
    }
  }
  // Two: the f32 sum, rounded to nearest even.
  const auto values = random_bits(40000, 7);
  for (size_t i = 0; i + 4 <= values.size(); i += 4) {
    Half a;
    Half b;
    std::memcpy(&a, &values[i], 2);
    std::memcpy(&b, &values[i + 2], 2);
    const float sum = static_cast<float>(a) + static_cast<float>(b);
    const Half got = fold_of<Half>({a, b}, DType::kF16, FoldOp::kSum);
    ASSERT_EQ(got.bits, std::isnan(sum) ? 0x7e00 : Half(sum).bits);
    BFloat16 c;
    BFloat16 d;
    std::memcpy(&c, &values[i], 2);
    std::memcpy(&d, &values[i + 2], 2);
    const float total = static_cast<float>(c) + static_cast<float>(d);
    const BFloat16 brain = fold_of<BFloat16>({c, d}, DType::kBF16, FoldOp::kSum);
    ASSERT_EQ(brain.bits, std::isnan(total) ? 0x7fc0 : BFloat16(total).bits);
  }
}

TEST(Fold, AveragesDoNotOverflowWhereTheirResultDoesNot) {
  EXPECT_EQ(fold_of<float>({3e38f, 3e38f}, DType::kF32, FoldOp::kAvg), 3e38f);
  EXPECT_EQ(fold_of<double>({1e308, 1e308, 1e308, 1e308}, DType::kF64, FoldOp::kAvg), 1e308);
  EXPECT_EQ(static_cast<float>(
                fold_of<Half>({Half(60000.0f), Half(60000.0f)}, DType::kF16, FoldOp::kAvg)),
            60000.0f);
  const int64_t least = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(fold_of<int64_t>({least, least, least}, DType::kI64, FoldOp::kAvg), least);
  EXPECT_EQ(fold_of<int32_t>({-3, 0}, DType::kI32, FoldOp::kAvg), -1);
  EXPECT_EQ(fold_of<uint8_t>({255, 255, 254}, DType::kU8, FoldOp::kAvg), 254);
}

TEST(Fold, ANanHasOneFormWhateverWentIn) {
  const float quiet = std::numeric_limits<float>::quiet_NaN();
  const float payload = std::bit_cast<float>(0xffc12345u);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto& inputs : std::vector<std::vector<float>>{
           {payload, 1}, {1, payload}, {payload, quiet}, {infinity, -infinity}}) {
    const float got = fold_of<float>(inputs, DType::kF32, FoldOp::kSum);
    EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(quiet));
  }
}

TEST(Fold, AndAndOrAreBitByBitForIntegersAndLogicalForBool) {
  EXPECT_EQ(fold_of<uint8_t>({0b1110, 0b0111, 0b1101}, DType::kU8, FoldOp::kAnd), 0b0100);
  EXPECT_EQ(fold_of<int32_t>({1, 2, -8}, DType::kI32, FoldOp::kOr), -5);
  EXPECT_EQ(fold_of<int64_t>({-1, int64_t{1} << 40}, DType::kI64, FoldOp::kAnd), int64_t{1} << 40);
  // A byte that is not 0 is true: 2 and 4 share no bit, and both are true.
  EXPECT_EQ(fold_of<uint8_t>({2, 4}, DType::kBool, FoldOp::kAnd), 1);
  EXPECT_EQ(fold_of<uint8_t>({0, 4, 0}, DType::kBool, FoldOp::kOr), 1);
  EXPECT_THROW(fold_of<float>({1, 2}, DType::kF32, FoldOp::kAnd), Error);
}

TEST(FoldOps, HaveNamesThatAreRead) {
  for (const FoldOp op : kOps) EXPECT_EQ(parse_fold_op(name(op)), op);
  EXPECT_EQ(parse_fold_op("mean"), FoldOp::kAvg);
  try {
    parse_fold_op("median");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("sum avg min max prod and or, got 'median'"));
  }
}

}  // namespace
}  // namespace lockstep::kernels
