#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/core/ops/attention.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct MultiheadAttentionOptions {
  double dropout = 0;  // of the weights, in training mode
  bool bias = true;
};

// What a query must not see. As in PyTorch's module, and other than in
// scaled_dot_product_attention(), true says that a key is hidden.
struct AttentionMasks {
  Tensor attn_mask = {};         // (L, S) or (N, num_heads, L, S): bool, or floating and added
  Tensor key_padding_mask = {};  // (N, S), bool: true for keys that are padding
  bool is_causal = false;        // query i sees keys 0 … i alone
};

// Attention of several heads (Vaswani et al., 2017) from queries (N, L, embed_dim) to keys and
// values (N, S, embed_dim): (N, L, embed_dim). Each head works on embed_dim / num_heads features of
// q, k and v, which in_proj_weight (3 embed_dim, embed_dim) and in_proj_bias make; out_proj, a
// Linear, brings the heads together. The batch comes first. in_proj_weight starts from
// xavier_uniform_, biases from 0.
class MultiheadAttention : public Module {
 public:
  MultiheadAttention(int64_t embed_dim, int64_t num_heads,
                     const MultiheadAttentionOptions& options = {});

  // Self-attention: x is queries, keys and values.
  Tensor forward(const Tensor& x) override { return forward(x, AttentionMasks()); }
  Tensor forward(const Tensor& x, const AttentionMasks& masks);
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value,
                 const AttentionMasks& masks = {});
  std::string extra_repr() const override;

  Tensor in_proj_weight;
  Tensor in_proj_bias;  // undefined where there is none
  std::shared_ptr<Linear> out_proj;

 private:
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMasks& masks);

  int64_t embed_dim_;
  int64_t num_heads_;
  MultiheadAttentionOptions options_;
};

}  // namespace lockstep::nn
