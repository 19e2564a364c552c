#include "lockstep/kernels/copy.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "arrays.h"
#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

TEST(Copy, EveryPairOfMemoryOrdersAndSizes) {
  for (DType dtype : {DType::kF32, DType::kI8, DType::kF16, DType::kF64}) {
    for (const Shape& shape : {Shape{3, 5, 7, 11}, Shape{1, 70, 41}, Shape{}, Shape{6, 0, 2}}) {
      const Array a = sample(dtype, shape, -100, 100);
      for (const Strides& from : some_strides(shape)) {
        for (const Strides& to : some_strides(shape)) {
          const Array x = with_strides(a, from);
          const Array y = empty(dtype, shape, to);
          Copy::cpu(x.view, y.view);
          for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(y.get(i), a.get(i)) << i;
        }
      }
    }
  }
}

TEST(Copy, LargeTransposesOnSeveralThreads) {
  const Array x = sample(DType::kF32, {501, 377});
  const Array y = empty(DType::kF32, {501, 377}, {1, 501});
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    Copy::cpu(x.view, y.view);
    for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(y.get(i), x.get(i)) << i;
  }
  set_num_threads(0);
}

// Tiles have 64 elements to a side (32 of 8 bytes), vectors 2 to 16, and what has few columns goes
// without.
TEST(Copy, TransposesAroundTheEdgesOfTiles) {
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kI64}) {
    for (const int64_t rows : {3, 16, 65, 1030}) {
      for (const int64_t columns : {15, 16, 33, 64, 66, 131}) {
        const Array x = filled(empty(dtype, {rows, columns}, {1, rows}),
                               [](int64_t i) { return static_cast<double>(i % 251); });
        const Array y = empty(dtype, {rows, columns});
        Copy::cpu(x.view, y.view);
        ASSERT_EQ(x.values(), y.values()) << name(dtype) << " " << rows << " by " << columns;
      }
    }
  }
}

TEST(Copy, ConvertsEveryPairOfDtypes) {
  for (int from = 0; from < kDTypeCount; ++from) {
    for (int to = 0; to < kDTypeCount; ++to) {
      const Array x = sample(static_cast<DType>(from), {29, 23}, 0, 100);
      const Array y = empty(static_cast<DType>(to), {29, 23}, {1, 29});
      Copy::cpu(x.view, y.view);
      for (int64_t i = 0; i < y.numel(); ++i) {
        const Array want = filled(empty(static_cast<DType>(to), {1}),
                                  [&](int64_t) { return to == 7 ? x.get(i) != 0 : x.get(i); });
        ASSERT_EQ(y.get(i), want.get(0)) << from << to;
      }
    }
  }
}

TEST(Copy, FloatsThatNoIntegerHoldsSaturate) {
  const double values[] = {kNan, kInf, -kInf, 1e30, -1e30, 300.7, -3.9};
  const Array x = filled(empty(DType::kF32, {7}), [&](int64_t i) { return values[i]; });
  const Array bytes = empty(DType::kU8, {7});
  Copy::cpu(x.view, bytes.view);
  EXPECT_EQ(bytes.values(), (std::vector<double>{0, 255, 0, 255, 0, 255, 0}));
  const Array words = empty(DType::kI32, {7});
  Copy::cpu(x.view, words.view);
  EXPECT_EQ(words.values(), (std::vector<double>{0, 2147483647, -2147483648.0, 2147483647,
                                                 -2147483648.0, 300, -3}));
  const Array longs = empty(DType::kI64, {7});
  Copy::cpu(x.view, longs.view);
  EXPECT_EQ(longs.view.as<int64_t>()[1], INT64_MAX);
  EXPECT_EQ(longs.view.as<int64_t>()[2], INT64_MIN);
  const Array truth = empty(DType::kBool, {7});
  Copy::cpu(x.view, truth.view);
  EXPECT_EQ(truth.values(), (std::vector<double>(7, 1)));
}

// The vectorised conversions agree with those of dtype.h for all values, NaN's payload included.
TEST(Copy, SixteenBitConversionsAreThoseOfTheTypes) {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  const auto n = static_cast<int64_t>(all.size());
  widen(reinterpret_cast<const Half*>(all.data()), wide.data(), n);
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(Half::to_float(all[i])));
  }
  std::vector<float> values;
  for (uint64_t i = 0; i <= 0xffffffffu; i += 6151) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(i)));
  }
  for (float x : wide) values.push_back(x);
  for (float x : wide) values.push_back(std::nextafter(x, 0.0f));
  std::vector<Half> half(values.size());
  std::vector<BFloat16> bfloat(values.size());
  narrow(values.data(), half.data(), static_cast<int64_t>(values.size()));
  narrow(values.data(), bfloat.data(), static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(half[i].bits, Half::from_float(values[i])) << values[i];
    ASSERT_EQ(bfloat[i].bits, BFloat16::from_float(values[i])) << values[i];
  }
}

TEST(Fill, EveryDtypeAndStride) {
  for (int code = 0; code < kDTypeCount; ++code) {
    for (const Strides& strides : some_strides({5, 3, 7})) {
      const Array x = empty(static_cast<DType>(code), {5, 3, 7}, strides);
      Fill::cpu(x.view, 1.0);
      for (double v : x.values()) ASSERT_EQ(v, 1);
    }
  }
  const Array big = empty(DType::kI64, {3});
  Fill::cpu(big.view, (int64_t{1} << 60) + 1);
  EXPECT_EQ(big.view.as<int64_t>()[2], (int64_t{1} << 60) + 1);
}

}  // namespace
}  // namespace lockstep::kernels
