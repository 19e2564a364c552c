#include "lockstep/nn/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

TEST(Linear, HasPyTorchsValuesAndGradients) {
  Linear linear(5, 7);
  linear.to(DType::kF64);
  assign(linear.weight, golden::wave(2, {7, 5}));
  assign(linear.bias, golden::wave(3, {7}));
  const Tensor x = golden::leaf(1, {4, 3, 5});
  golden::expect_gradients("linear", linear(x),
                           {{"x", x}, {"weight", linear.weight}, {"bias", linear.bias}});
}

TEST(Linear, WithoutABiasHasOneParameter) {
  Linear linear(3, 2, false);
  EXPECT_EQ(linear.named_parameters().size(), 1u);
  assign(linear.weight, Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3}));
  const Tensor y = linear(Tensor::from<float>({1, 10, 100}, {1, 3}));
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{321, 654}));
}

TEST(Linear, UsesAWeightThatReplacedTheFirst) {
  Linear linear(2, 1, false);
  linear.weight = Tensor::from<float>({3, 5}, {1, 2});
  EXPECT_EQ(linear(Tensor::from<float>({1, 1}, {1, 2})).item(), 8);
}

TEST(Linear, RefusesSizesBelowOne) {
  EXPECT_THAT(error_of([] { Linear(0, 3); }), HasSubstr("got 0 and 3"));
  EXPECT_THAT(error_of([] { Linear(3, -1); }), HasSubstr("got 3 and -1"));
}

TEST(Embedding, HasPyTorchsValuesAndGradients) {
  Embedding embedding(6, 3);
  embedding.to(DType::kF64);
  assign(embedding.weight, golden::wave(2, {6, 3}));
  const Tensor index = Tensor::from<int64_t>({1, 5, 1, 0, 1, 3}, {2, 3});
  const Tensor y = embedding(index);
  EXPECT_EQ(y.shape(), Shape({2, 3, 3}));
  golden::expect_gradients("embedding", y, {{"weight", embedding.weight}});
}

TEST(Embedding, ThePaddingRowStartsFromZeroAndGetsNoGradient) {
  Embedding embedding(6, 3, {.padding_idx = 1});
  EXPECT_EQ(embedding.weight.select(0, 1).to_vector<float>(), std::vector<float>(3, 0.0f));
  embedding.to(DType::kF64);
  assign(embedding.weight, golden::wave(2, {6, 3}));
  const Tensor index = Tensor::from<int64_t>({1, 5, 1, 0, 1, 3}, {2, 3});
  golden::expect_gradients("embedding.padding", embedding(index), {{"weight", embedding.weight}});
  EXPECT_THAT(error_of([] { Embedding(6, 3, {.padding_idx = 6}); }), HasSubstr("padding_idx"));
}

TEST(Embedding, RefusesAPlaceThatDoesNotExist) {
  Embedding embedding(6, 3);
  EXPECT_THAT(error_of([&] { embedding(Tensor::from<int64_t>({2, 6}, {2})); }), HasSubstr("6"));
}

}  // namespace
}  // namespace lockstep::nn
