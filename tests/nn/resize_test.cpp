#include "lockstep/nn/resize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/core/random.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

// The ops have PyTorch's values and gradients (tests/core/op_table_test.cpp).
TEST(Upsample, IsUpsample2dByItsFactors) {
  const Tensor x = randn({2, 3, 3, 5});
  for (const bool corners : {false, true}) {
    Upsample layer({2, 3}, {.mode = UpsampleMode::kBilinear, .align_corners = corners});
    const Tensor want = upsample2d(x, {6, 15}, UpsampleMode::kBilinear, corners);
    EXPECT_EQ(layer(x).to_vector<float>(), want.to_vector<float>());
  }
  EXPECT_EQ(Upsample(2)(x).to_vector<float>(), upsample2d(x, {6, 10}).to_vector<float>());
  EXPECT_EQ(Upsample(2, {.mode = UpsampleMode::kBilinear, .align_corners = true}).to_string(),
            "Upsample(scale_factor=(2, 2), mode=bilinear, align_corners=true)");
}

TEST(AdaptiveAvgPool2d, HasTheSizeThatItWasGiven) {
  const Tensor x = randn({2, 3, 7, 5});
  AdaptiveAvgPool2d layer({3, 4});
  EXPECT_EQ(layer(x).to_vector<float>(), adaptive_avg_pool2d(x, {3, 4}).to_vector<float>());
  EXPECT_EQ(layer.to_string(), "AdaptiveAvgPool2d(output_size=(3, 4))");
}

TEST(Upsample, RefusesSizesOutOfRange) {
  EXPECT_THAT(error_of([] { Upsample({2, 0}); }), HasSubstr("(2, 0)"));
  EXPECT_THAT(error_of([] { AdaptiveAvgPool2d(0); }), HasSubstr("(0, 0)"));
  EXPECT_THAT(error_of([] { Upsample(2)(Tensor::ones({3, 4})); }), HasSubstr("(3, 4)"));
}

}  // namespace
}  // namespace lockstep::nn
