#include "lockstep/nn/pooling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

TEST(Pooling, HasPyTorchsValuesAndGradients) {
  MaxPool2d largest({3, 2}, {.stride = Size2(2, 1), .padding = {1, 0}, .dilation = {1, 2}});
  Tensor x = golden::leaf(1, {2, 3, 9, 8});
  golden::expect_gradients("max_pool2d", largest(x), {{"x", x}});
  for (const bool count : {true, false}) {
    AvgPool2d average({3, 2}, {.stride = Size2(2, 3), .padding = 1, .count_include_pad = count});
    x = golden::leaf(1, {2, 3, 9, 8});
    golden::expect_gradients(count ? "avg_pool2d.padded" : "avg_pool2d.inside", average(x),
                             {{"x", x}});
  }
}

TEST(Pooling, StepsByItsKernelUnlessTold) {
  MaxPool2d pool({2, 3});
  EXPECT_EQ(pool(Tensor::ones({1, 1, 7, 7})).shape(), Shape({1, 1, 3, 2}));
  EXPECT_EQ(pool.to_string(),
            "MaxPool2d(kernel_size=(2, 3), stride=(2, 3), padding=(0, 0), dilation=(1, 1))");
}

TEST(Pooling, RefusesWindowsThatMakeNoSense) {
  EXPECT_THAT(error_of([] { MaxPool2d(0); }), HasSubstr("(0, 0)"));
  EXPECT_THAT(error_of([] { MaxPool2d(3, {.padding = 2}); }), HasSubstr("half the kernel"));
  EXPECT_THAT(error_of([] { AvgPool2d(2, {.stride = Size2(0, 1)}); }), HasSubstr("(0, 1)"));
}

}  // namespace
}  // namespace lockstep::nn
