#include "lockstep/nn/layer_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

TEST(LayerNorm, HasPyTorchsValuesAndGradients) {
  LayerNorm norm({3, 5}, {.eps = 1e-4});
  norm.to(DType::kF64);
  assign(norm.weight, golden::wave(2, {3, 5}));
  assign(norm.bias, golden::wave(3, {3, 5}));
  const Tensor x = golden::leaf(1, {4, 3, 5});
  golden::expect_gradients("layer_norm", norm(x),
                           {{"x", x}, {"weight", norm.weight}, {"bias", norm.bias}});
}

TEST(LayerNorm, HasPyTorchsSecondGradients) {
  LayerNorm norm({5});
  norm.to(DType::kF64);
  assign(norm.weight, golden::wave(2, {5}));
  assign(norm.bias, golden::wave(3, {5}));
  const Tensor x = golden::leaf(1, {3, 5});
  golden::expect_two_orders("layer_norm.rows", norm(x),
                            {{"x", x}, {"weight", norm.weight}, {"bias", norm.bias}});
}

TEST(GroupNorm, HasPyTorchsValuesAndGradients) {
  GroupNorm norm(2, 4, {.eps = 1e-3});
  norm.to(DType::kF64);
  assign(norm.weight, golden::wave(2, {4}));
  assign(norm.bias, golden::wave(3, {4}));
  const Tensor x = golden::leaf(1, {2, 4, 3, 2});
  golden::expect_two_orders("group_norm", norm(x),
                            {{"x", x}, {"weight", norm.weight}, {"bias", norm.bias}});
}

TEST(InstanceNorm, HasPyTorchsValuesAndGradients) {
  InstanceNorm norm(3, {.eps = 1e-3, .affine = true});
  norm.to(DType::kF64);
  assign(norm.weight, golden::wave(2, {3}));
  assign(norm.bias, golden::wave(3, {3}));
  const Tensor x = golden::leaf(1, {2, 3, 5});
  golden::expect_two_orders("instance_norm", norm(x),
                            {{"x", x}, {"weight", norm.weight}, {"bias", norm.bias}});
}

TEST(LayerNorm, ParametersAreThoseAskedFor) {
  EXPECT_EQ(LayerNorm({4}).parameters().size(), 2);
  EXPECT_EQ(LayerNorm({4}, {.bias = false}).parameters().size(), 1);
  EXPECT_EQ(LayerNorm({4}, {.elementwise_affine = false}).parameters().size(), 0);
  EXPECT_EQ(GroupNorm(2, 4, {.affine = false}).parameters().size(), 0);
  EXPECT_EQ(InstanceNorm(4).parameters().size(), 0);
  EXPECT_EQ(LayerNorm({4}).to_string(), "LayerNorm((4), eps=1e-05, elementwise_affine=true)");
}

TEST(LayerNorm, RefusesWhatHasNoMeaning) {
  EXPECT_THAT(error_of([] { LayerNorm({}); }), HasSubstr("[LayerNorm]"));
  EXPECT_THAT(error_of([] { GroupNorm(3, 4); }), HasSubstr("got 3, 4"));
  EXPECT_THAT(error_of([] { InstanceNorm(0); }), HasSubstr("num_features"));
  EXPECT_THAT(error_of([] { GroupNorm(2, 4)(Tensor::ones({2, 6})); }), HasSubstr("(2, 6)"));
  EXPECT_THAT(error_of([] { InstanceNorm(3)(Tensor::ones({2, 4, 5})); }), HasSubstr("(N, 3"));
}

}  // namespace
}  // namespace lockstep::nn
