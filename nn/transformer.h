#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/ops/elementwise.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/layer_norm.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/module_list.h"

namespace lockstep::nn {

struct TransformerEncoderLayerOptions {
  int64_t dim_feedforward = 2048;
  double dropout = 0.1;  // of the attention's weights and of each part's result
  Tensor (*activation)(const Tensor&) = relu;  // gelu_tanh: linear_gelu()
  double layer_norm_eps = 1e-5;
  bool norm_first = false;  // normalise what goes into a part, not the sum after it
  bool bias = true;
};

// Self-attention, then two linear layers, each added to what went in (Vaswani et al., 2017), for
// x (N, L, d_model):
//
//   x = norm1(x + dropout1(self_attn(x)));   x = norm2(x + dropout2(feed(x)));
//   norm_first: x = x + dropout1(self_attn(norm1(x)));   x = x + dropout2(feed(norm2(x)));
//
// with feed(x) = linear2(dropout(activation(linear1(x)))).
class TransformerEncoderLayer : public Module {
 public:
  TransformerEncoderLayer(int64_t d_model, int64_t nhead,
                          const TransformerEncoderLayerOptions& options = {});

  Tensor forward(const Tensor& x) override { return forward(x, AttentionMasks()); }
  Tensor forward(const Tensor& x, const AttentionMasks& masks);

  std::shared_ptr<MultiheadAttention> self_attn;
  std::shared_ptr<Linear> linear1;
  std::shared_ptr<Linear> linear2;
  std::shared_ptr<LayerNorm> norm1;
  std::shared_ptr<LayerNorm> norm2;

 private:
  TransformerEncoderLayerOptions options_;
  std::shared_ptr<Dropout> dropout_;
  std::shared_ptr<Dropout> dropout1_;
  std::shared_ptr<Dropout> dropout2_;
};

// Layers "layers.0", "layers.1", … in a row and, where given, a norm "norm" after the last.
class TransformerEncoder : public Module {
 public:
  explicit TransformerEncoder(std::vector<std::shared_ptr<TransformerEncoderLayer>> layers,
                              std::shared_ptr<LayerNorm> norm = nullptr);

  Tensor forward(const Tensor& x) override { return forward(x, AttentionMasks()); }
  Tensor forward(const Tensor& x, const AttentionMasks& masks);

 private:
  std::shared_ptr<ModuleList<TransformerEncoderLayer>> layers_;
  std::shared_ptr<LayerNorm> norm_;
};

}  // namespace lockstep::nn
