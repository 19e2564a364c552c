#include "lockstep/nn/conv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

void expect_golden(const std::string& name, Conv2d& conv, const Shape& shape) {
  conv.to(DType::kF64);
  assign(conv.weight, golden::wave(2, conv.weight.shape()));
  assign(conv.bias, golden::wave(3, conv.bias.shape()));
  const Tensor x = golden::leaf(1, shape);
  golden::expect_gradients("conv2d." + name, conv(x),
                           {{"x", x}, {"weight", conv.weight}, {"bias", conv.bias}});
}

TEST(Conv2d, HasPyTorchsValuesAndGradients) {
  Conv2d plain(3, 4, 3, {.padding = 1});
  expect_golden("plain", plain, {2, 3, 7, 5});
  Conv2d strided(4, 6, {3, 2},
                 {.stride = {2, 1}, .padding = {1, 2}, .dilation = {2, 3}, .groups = 2});
  expect_golden("strided", strided, {2, 4, 9, 8});
  Conv2d depthwise(3, 3, 3, {.padding = 1, .groups = 3});
  expect_golden("depthwise", depthwise, {1, 3, 6, 7});
  Conv2d pointwise(5, 2, 1, {.stride = 2});
  expect_golden("pointwise", pointwise, {3, 5, 4, 3});
}

TEST(Conv2d, WithoutABiasHasOneParameter) {
  const Conv2d conv(3, 4, 3, {.bias = false});
  ASSERT_EQ(conv.named_parameters().size(), 1u);
  EXPECT_EQ(conv.parameter_count(), 4 * 3 * 9);
}

TEST(Conv2d, PrintsWhatIsNotDefault) {
  EXPECT_EQ(Conv2d(1, 8, 3).to_string(), "Conv2d(1, 8, kernel_size=(3, 3), stride=(1, 1))");
  EXPECT_EQ(Conv2d(4, 8, {3, 5}, {.stride = 2, .padding = {1, 2}, .groups = 2, .bias = false})
                .to_string(),
            "Conv2d(4, 8, kernel_size=(3, 5), stride=(2, 2), padding=(1, 2), groups=2, "
            "bias=false)");
}

TEST(Conv2d, RefusesOptionsOutOfRange) {
  EXPECT_THAT(error_of([] { Conv2d(4, 6, 3, {.groups = 4}); }), HasSubstr("groups 4"));
  EXPECT_THAT(error_of([] { Conv2d(0, 6, 3); }), HasSubstr("in_channels 0"));
  EXPECT_THAT(error_of([] { Conv2d(4, 6, 0); }), HasSubstr("(0, 0)"));
  EXPECT_THAT(error_of([] { Conv2d(4, 6, 3, {.stride = {1, 0}}); }), HasSubstr("(1, 0)"));
  EXPECT_THAT(error_of([] { Conv2d(4, 6, 3, {.padding = -1}); }), HasSubstr("(-1, -1)"));
}

}  // namespace
}  // namespace lockstep::nn
