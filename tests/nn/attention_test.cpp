#include "lockstep/nn/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "layers.h"
#include "lockstep/core/ops.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

Tensor causal_mask(int64_t n) {
  const Tensor place = Tensor::arange(n);
  return gt(place, reshape(place, {n, 1}));
}

// The parameters in order, filled with waves 5, 6, …, and listed as make_layers.py lists them.
golden::NamedLeaves fill(Module& module) {
  golden::NamedLeaves out;
  module.to(DType::kF64);
  int k = 5;
  for (auto& [name, tensor] : module.named_parameters()) {
    assign(tensor, golden::wave(k++, tensor.shape()));
    std::string key = name;
    std::replace(key.begin(), key.end(), '.', '_');
    out.emplace_back(key, tensor);
  }
  return out;
}

TEST(Attention, HasPyTorchsValuesAndGradientsOfTwoOrders) {
  const auto expect = [](const std::string& name, const AttentionOptions& options) {
    const Tensor q = golden::leaf(1, {2, 3, 5, 4});
    const Tensor k = golden::leaf(2, {2, 3, 7, 4});
    const Tensor v = golden::leaf(3, {2, 3, 7, 6});
    golden::expect_two_orders("attention." + name, scaled_dot_product_attention(q, k, v, options),
                              {{"q", q}, {"k", k}, {"v", v}});
  };
  expect("plain", {});
  expect("causal", {.is_causal = true, .scale = 0.3});
  expect("mask", {.mask = gt(golden::wave(4, {5, 7}), -0.5)});
  expect("bias", {.mask = golden::wave(4, {3, 5, 7})});
}

TEST(MultiheadAttention, ToItselfHasPyTorchsValuesAndGradients) {
  MultiheadAttention attention(6, 3);
  golden::NamedLeaves leaves = fill(attention);
  const Tensor x = golden::leaf(1, {2, 4, 6});
  leaves.emplace_back("x", x);
  golden::expect_gradients("multihead.self", attention.forward(x, {.attn_mask = causal_mask(4)}),
                           leaves);
  EXPECT_THAT(attention.forward(x, {.is_causal = true}).to_vector<double>(),
              ::testing::Pointwise(
                  ::testing::DoubleNear(1e-12),
                  attention.forward(x, {.attn_mask = causal_mask(4)}).to_vector<double>()));
}

TEST(MultiheadAttention, ToOthersHasPyTorchsValuesAndGradients) {
  MultiheadAttention attention(6, 3);
  fill(attention);
  const Tensor x = golden::leaf(1, {2, 4, 6});
  const Tensor z = golden::leaf(2, {2, 5, 6});
  const Tensor padding = gt(Tensor::from<float>({0, 0, 0, 1, 1, 0, 1, 0, 0, 0}, {2, 5}), 0.5);
  const Tensor y = attention.forward(
      x, z, z, {.attn_mask = golden::wave(3, {4, 5}), .key_padding_mask = padding});
  golden::expect_gradients("multihead.cross", y, {{"x", x}, {"z", z}});
}

TEST(MultiheadAttention, MasksOfOneKindGoTogether) {
  MultiheadAttention attention(6, 2);
  fill(attention);
  const Tensor x = golden::wave(1, {1, 3, 6});
  const Tensor padding = gt(Tensor::from<float>({0, 0, 1}, {1, 3}), 0.5);
  const Tensor both =
      attention.forward(x, {.attn_mask = causal_mask(3), .key_padding_mask = padding});
  const Tensor causal = attention.forward(x, {.attn_mask = causal_mask(3)});
  // The first two queries see what they saw; the third no longer sees itself.
  EXPECT_EQ(max(abs(narrow(both - causal, 1, 0, 2))).item(), 0);
  EXPECT_GT(max(abs(narrow(both - causal, 1, 2, 1))).item(), 1e-3);
}

TEST(MultiheadAttention, DropsWeightsInTrainingAlone) {
  MultiheadAttention attention(6, 2, {.dropout = 0.5});
  const Tensor x = randn({2, 9, 6});
  EXPECT_GT(max(abs(attention(x) - attention(x))).item(), 0);
  attention.eval();
  EXPECT_EQ(max(abs(attention(x) - attention(x))).item(), 0);
}

TEST(MultiheadAttention, RefusesWhatHasNoMeaning) {
  EXPECT_THAT(error_of([] { MultiheadAttention(6, 4); }), HasSubstr("got 4, 6"));
  MultiheadAttention attention(6, 2);
  EXPECT_THAT(error_of([&] { attention(Tensor::ones({2, 3, 5})); }), HasSubstr("(2, 3, 5)"));
  const Tensor x = Tensor::ones({2, 3, 6});
  EXPECT_THAT(error_of([&] {
                attention.forward(x, x, Tensor::ones({2, 4, 6}));
              }),
              HasSubstr("(2, 4, 6)"));
  EXPECT_THAT(error_of([&] { attention.forward(x, {.key_padding_mask = causal_mask(3)}); }),
              HasSubstr("(2, 3), got (3, 3)"));
}

}  // namespace
}  // namespace lockstep::nn
