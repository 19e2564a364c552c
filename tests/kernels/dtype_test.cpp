#include "lockstep/kernels/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

TEST(DType, ReadsItsOwnNamesAndTheCommonOnes) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
    EXPECT_EQ(visit_dtype(dtype, [](auto tag) { return dtype_of<typename decltype(tag)::type>(); }),
              dtype);
  }
  EXPECT_EQ(parse_dtype("float"), DType::kF32);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::kBF16);
  EXPECT_THAT(
      [] { parse_dtype("f31"); },
      testing::ThrowsMessage<Error>(testing::HasSubstr("bf16 i64 i32 u8 bool i8, got 'f31'")));
  EXPECT_THROW(size_of(static_cast<DType>(77)), Error);
}

// Every 16-bit pattern survives the way through float.
TEST(Half, RoundTripsEveryValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = Half::to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Half::to_float(Half::from_float(value))));
    } else {
      ASSERT_EQ(Half::from_float(value), bits);
    }
    BFloat16 b;
    b.bits = static_cast<uint16_t>(bits);
    const auto wide = static_cast<float>(b);
    if (!std::isnan(wide)) {
      ASSERT_EQ(BFloat16(wide).bits, bits);
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  // Between two neighbours a float goes to the nearer, a tie to the even one.
  for (uint32_t bits = 0; bits < 0x7bffu; ++bits) {
    const float low = Half::to_float(static_cast<uint16_t>(bits));
    const float high = Half::to_float(static_cast<uint16_t>(bits + 1));
    const float middle = (low + high) / 2;  // exact in float
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(Half::from_float(middle), even);
    ASSERT_EQ(Half::from_float(std::nextafter(middle, low)), bits);
    ASSERT_EQ(Half::from_float(std::nextafter(middle, high)), bits + 1);
    ASSERT_EQ(Half::from_float(-middle), even | 0x8000u);
  }
  EXPECT_EQ(Half::from_float(65519.9f), 0x7bffu);
  EXPECT_EQ(Half::from_float(65520.0f), 0x7c00u);
  EXPECT_EQ(Half::from_float(1e-8f), 0u);
}

TEST(BFloat16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(BFloat16(1.00390625f).bits, BFloat16(1.0f).bits);       // a tie, to even
  EXPECT_EQ(BFloat16(1.01171875f).bits, BFloat16(1.015625f).bits);  // a tie, to even
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isinf(static_cast<float>(BFloat16(std::numeric_limits<float>::max()))));
}

}  // namespace
}  // namespace lockstep
