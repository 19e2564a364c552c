#include "lockstep/nn/conv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layers.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"

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

// The ops have PyTorch's values and gradients (tests/core/op_table_test.cpp); the layers pass all
// options on, each in its place.
TEST(Conv1d, IsConv1dOfItsParameters) {
  Conv1d conv(4, 6, 3, {.stride = 2, .padding = 1, .dilation = 3, .groups = 2});
  const Tensor x = randn({2, 4, 11});
  const Tensor want =
      conv1d(x, conv.weight, conv.bias, {.stride = 2, .padding = 1, .dilation = 3, .groups = 2});
  EXPECT_EQ(conv(x).shape(), Shape({2, 6, 4}));
  EXPECT_EQ(conv(x).to_vector<float>(), want.to_vector<float>());
  EXPECT_EQ(conv.to_string(),
            "Conv1d(4, 6, kernel_size=(3,), stride=(2,), padding=(1,), dilation=(3,), groups=2)");
}

TEST(ConvTranspose2d, IsConvTranspose2dOfItsParameters) {
  ConvTranspose2d conv(4, 6, {3, 2},
                       {.stride = {2, 3},
                        .padding = {1, 0},
                        .output_padding = {1, 2},
                        .groups = 2,
                        .bias = true,
                        .dilation = {1, 2}});
  const Tensor x = randn({2, 4, 3, 5});
  const Tensor want = conv_transpose2d(x, conv.weight, conv.bias,
                                       {.stride = {2, 3},
                                        .padding = {1, 0},
                                        .output_padding = {1, 2},
                                        .dilation = {1, 2},
                                        .groups = 2});
  EXPECT_EQ(conv.weight.shape(), Shape({4, 3, 3, 2}));
  EXPECT_EQ(conv(x).to_vector<float>(), want.to_vector<float>());
  EXPECT_EQ(conv.to_string(),
            "ConvTranspose2d(4, 6, kernel_size=(3, 2), stride=(2, 3), padding=(1, 0), "
            "output_padding=(1, 2), dilation=(1, 2), groups=2)");
}

TEST(ConvTranspose1d, IsConvTranspose1dOfItsParameters) {
  ConvTranspose1d conv(4, 6, 3, {.stride = 3, .padding = 1, .output_padding = 2, .bias = false});
  const Tensor x = randn({2, 4, 5});
  const Tensor want =
      conv_transpose1d(x, conv.weight, Tensor(), {.stride = 3, .padding = 1, .output_padding = 2});
  ASSERT_EQ(conv.named_parameters().size(), 1u);
  EXPECT_EQ(conv(x).to_vector<float>(), want.to_vector<float>());
}

// As PyTorch: the fan is that of the weight's second dimension, of the transposed layers too.
TEST(ConvTranspose2d, StartsFromItsFan) {
  const ConvTranspose2d conv(50, 4, 3);
  const double bound = 1 / std::sqrt(4.0 * 9);
  const Tensor size = abs(conv.weight);
  EXPECT_LE(max(size).item(), bound);
  EXPECT_GT(max(size).item(), 0.95 * bound);
  EXPECT_LE(max(abs(conv.bias)).item(), bound);
}

TEST(ConvTranspose2d, RefusesOptionsOutOfRange) {
  EXPECT_THAT(error_of([] {
                ConvTranspose2d(4, 6, 3, {.output_padding = {0, 1}});
              }),
              HasSubstr("output_padding"));
  EXPECT_THAT(error_of([] { ConvTranspose1d(4, 6, 3, {.stride = 0}); }), HasSubstr("stride"));
  EXPECT_THAT(error_of([] { Conv1d(4, 6, 3, {.groups = 3}); }), HasSubstr("[Conv1d]"));
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
