#include "lockstep/nn/transformer.h"

#include "absl/strings/str_cat.h"
#include "lockstep/core/ops/matmul.h"

namespace lockstep::nn {

TransformerEncoderLayer::TransformerEncoderLayer(int64_t d_model, int64_t nhead,
                                                 const TransformerEncoderLayerOptions& options)
    : options_(options) {
  check(options.activation != nullptr, "TransformerEncoderLayer", "want an activation, got null");
  const int64_t wide = options.dim_feedforward;
  const LayerNormOptions norm = {.eps = options.layer_norm_eps, .bias = options.bias};
  self_attn = register_module("self_attn", std::make_shared<MultiheadAttention>(
                                               d_model, nhead,
                                               MultiheadAttentionOptions{.dropout = options.dropout,
                                                                         .bias = options.bias}));
  linear1 = register_module("linear1", std::make_shared<Linear>(d_model, wide, options.bias));
  dropout_ = register_module("dropout", std::make_shared<Dropout>(options.dropout));
  linear2 = register_module("linear2", std::make_shared<Linear>(wide, d_model, options.bias));
  norm1 = register_module("norm1", std::make_shared<LayerNorm>(Shape{d_model}, norm));
  norm2 = register_module("norm2", std::make_shared<LayerNorm>(Shape{d_model}, norm));
  dropout1_ = register_module("dropout1", std::make_shared<Dropout>(options.dropout));
  dropout2_ = register_module("dropout2", std::make_shared<Dropout>(options.dropout));
}

Tensor TransformerEncoderLayer::forward(const Tensor& x, const AttentionMasks& masks) {
  const auto attend = [&](const Tensor& in) {
    return dropout1_->forward(self_attn->forward(in, masks));
  };
  const auto feed = [&](const Tensor& in) {
    const Tensor hidden = options_.activation == gelu_tanh
                              ? linear_gelu(in, linear1->weight, linear1->bias)
                              : options_.activation(linear1->forward(in));
    return dropout2_->forward(linear2->forward(dropout_->forward(hidden)));
  };
  if (options_.norm_first) {
    const Tensor y = x + attend(norm1->forward(x));
    return y + feed(norm2->forward(y));
  }
  const Tensor y = norm1->forward(x + attend(x));
  return norm2->forward(y + feed(y));
}

TransformerEncoder::TransformerEncoder(std::vector<std::shared_ptr<TransformerEncoderLayer>> layers,
                                       std::shared_ptr<LayerNorm> norm)
    : norm_(std::move(norm)) {
  layers_ = register_module("layers", std::make_shared<ModuleList<TransformerEncoderLayer>>());
  for (auto& layer : layers) layers_->push_back(std::move(layer));
  if (norm_ != nullptr) register_module("norm", norm_);
}

Tensor TransformerEncoder::forward(const Tensor& x, const AttentionMasks& masks) {
  Tensor y = x;
  for (const auto& layer : *layers_) y = layer->forward(y, masks);
  return norm_ != nullptr ? norm_->forward(y) : y;
}

}  // namespace lockstep::nn
