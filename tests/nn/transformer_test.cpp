#include "lockstep/nn/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "layers.h"
#include "lockstep/core/ops.h"

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names_of(const Module& module) {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : module.named_parameters()) out.push_back(name);
  return out;
}

TEST(TransformerEncoderLayer, HasPyTorchsValuesAndGradients) {
  for (const bool norm_first : {false, true}) {
    TransformerEncoderLayer layer(
        6, 2,
        {.dim_feedforward = 5, .activation = norm_first ? gelu : relu, .norm_first = norm_first});
    layer.to(DType::kF64);
    layer.eval();
    golden::NamedLeaves leaves;
    int k = 5;
    for (auto& [name, tensor] : layer.named_parameters()) {
      assign(tensor, golden::wave(k++, tensor.shape()));
      std::string key = name;
      std::replace(key.begin(), key.end(), '.', '_');
      leaves.emplace_back(key, tensor);
    }
    const Tensor x = golden::leaf(1, {2, 4, 6});
    leaves.emplace_back("x", x);
    golden::expect_gradients(norm_first ? "transformer.pre" : "transformer.post",
                             layer.forward(x, {.is_causal = true}), leaves);
  }
}

// Which goes with the product before it.
TEST(TransformerEncoderLayer, GeluInItsTanhFormIsAnActivationLikeOthers) {
  const auto results = [](Tensor (*activation)(const Tensor&)) {
    TransformerEncoderLayer layer(6, 2, {.dim_feedforward = 5, .activation = activation});
    layer.to(DType::kF64);
    layer.eval();
    int k = 5;
    for (auto& [name, tensor] : layer.named_parameters()) {
      assign(tensor, golden::wave(k++, tensor.shape()));
    }
    const Tensor x = golden::leaf(1, {2, 4, 6});
    std::vector<Tensor> out = {layer.forward(x)};
    sum(square(out[0])).backward();
    out.push_back(x.grad());
    for (auto& [name, tensor] : layer.named_parameters()) out.push_back(tensor.grad());
    return out;
  };
  const std::vector<Tensor> got = results(gelu_tanh);
  const std::vector<Tensor> want = results([](const Tensor& x) { return gelu_tanh(x); });
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].to_vector<double>(), want[i].to_vector<double>()) << i;
  }
}

TEST(TransformerEncoderLayer, NamesAreThoseOfPyTorch) {
  EXPECT_THAT(
      names_of(TransformerEncoderLayer(4, 2)),
      ElementsAre("self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight",
                  "self_attn.out_proj.bias", "linear1.weight", "linear1.bias", "linear2.weight",
                  "linear2.bias", "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"));
  EXPECT_THAT(names_of(TransformerEncoderLayer(4, 2, {.bias = false})),
              ElementsAre("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight",
                          "linear2.weight", "norm1.weight", "norm2.weight"));
}

TEST(TransformerEncoder, RunsItsLayersInARow) {
  const auto layer = [] {
    return std::make_shared<TransformerEncoderLayer>(
        6, 2, TransformerEncoderLayerOptions{.dim_feedforward = 7});
  };
  const auto a = layer();
  const auto b = layer();
  const auto norm = std::make_shared<LayerNorm>(Shape{6});
  TransformerEncoder encoder({a, b}, norm);
  encoder.eval();
  EXPECT_EQ(names_of(encoder)[0], "layers.0.self_attn.in_proj_weight");
  EXPECT_EQ(names_of(encoder).back(), "norm.bias");
  const Tensor x = randn({3, 5, 6});
  const AttentionMasks masks = {.is_causal = true};
  const Tensor want = norm->forward(b->forward(a->forward(x, masks), masks));
  EXPECT_EQ(encoder.forward(x, masks).to_vector<float>(), want.to_vector<float>());
}

TEST(TransformerEncoderLayer, DropsInTrainingAlone) {
  TransformerEncoderLayer layer(6, 2, {.dim_feedforward = 7, .dropout = 0.5});
  const Tensor x = randn({3, 5, 6});
  EXPECT_GT(max(abs(layer(x) - layer(x))).item(), 0);
  layer.eval();
  EXPECT_EQ(max(abs(layer(x) - layer(x))).item(), 0);
}

}  // namespace
}  // namespace lockstep::nn
