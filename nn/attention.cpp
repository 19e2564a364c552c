#include "lockstep/nn/attention.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/matmul.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {
namespace {

// The two masks as one that scaled_dot_product_attention() takes; undefined for none.
Tensor merged(const AttentionMasks& masks, const Tensor& q, int64_t keys) {
  Tensor mask = masks.attn_mask;
  const bool is_bool = mask.defined() && mask.dtype() == DType::kBool;
  if (is_bool) mask = eq(mask, 0);
  const Tensor& padding = masks.key_padding_mask;
  if (!padding.defined()) return mask;
  check(padding.dtype() == DType::kBool && padding.shape() == Shape{q.size(0), keys},
        "MultiheadAttention", [&] {
          return absl::StrCat("want a key_padding_mask of dtype bool and shape (", q.size(0), ", ",
                              keys, "), got ", lockstep::to_string(padding.shape()));
        });
  const Tensor seen = reshape(eq(padding, 0), {q.size(0), 1, 1, keys});
  if (!mask.defined()) return seen;
  return where(seen, mask, is_bool ? 0.0 : -std::numeric_limits<double>::infinity());
}

}  // namespace

MultiheadAttention::MultiheadAttention(int64_t embed_dim, int64_t num_heads,
                                       const MultiheadAttentionOptions& options)
    : embed_dim_(embed_dim), num_heads_(num_heads), options_(options) {
  check(embed_dim > 0 && num_heads > 0 && embed_dim % num_heads == 0 && options.dropout >= 0 &&
            options.dropout <= 1,
        "MultiheadAttention", [&] {
          return absl::StrCat("want num_heads that divides embed_dim and a dropout from 0 to 1, ",
                              "got ", num_heads, ", ", embed_dim, " and ", options.dropout);
        });
  in_proj_weight = Tensor::empty({3 * embed_dim, embed_dim});
  xavier_uniform_(in_proj_weight);
  register_parameter("in_proj_weight", in_proj_weight);
  if (options.bias) {
    in_proj_bias = Tensor::zeros({3 * embed_dim});
    register_parameter("in_proj_bias", in_proj_bias);
  }
  out_proj =
      register_module("out_proj", std::make_shared<Linear>(embed_dim, embed_dim, options.bias));
  if (options.bias) zeros_(out_proj->bias);
}

Tensor MultiheadAttention::forward(const Tensor& x, const AttentionMasks& masks) {
  check(x.dim() == 3 && x.size(2) == embed_dim_, "MultiheadAttention", [&] {
    return absl::StrCat("want x (N, L, ", embed_dim_, "), got ", lockstep::to_string(x.shape()));
  });
  // One product for all three; the heads are views of its rows.
  const Tensor qkv = reshape(linear(x, in_proj_weight, in_proj_bias),
                             {x.size(0), x.size(1), 3, num_heads_, embed_dim_ / num_heads_});
  const auto heads = [&](int64_t i) { return transpose(select(qkv, 2, i), 1, 2); };
  return attend(heads(0), heads(1), heads(2), masks);
}

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionMasks& masks) {
  if (query.is_same(key) && key.is_same(value)) return forward(query, masks);
  const auto is_batch = [&](const Tensor& x) { return x.dim() == 3 && x.size(2) == embed_dim_; };
  check(is_batch(query) && is_batch(key) && is_batch(value) && key.size(1) == value.size(1) &&
            query.size(0) == key.size(0) && key.size(0) == value.size(0),
        "MultiheadAttention", [&] {
          return absl::StrCat(
              "want a query (N, L, ", embed_dim_, "), and a key and a value (N, S, ", embed_dim_,
              "), got ", lockstep::to_string(query.shape()), ", ", lockstep::to_string(key.shape()),
              " and ", lockstep::to_string(value.shape()));
        });
  const auto heads = [&](const Tensor& x, int64_t i) {
    const Tensor weight = narrow(in_proj_weight, 0, i * embed_dim_, embed_dim_);
    const Tensor bias =
        in_proj_bias.defined() ? narrow(in_proj_bias, 0, i * embed_dim_, embed_dim_) : Tensor();
    const Shape split = {x.size(0), x.size(1), num_heads_, embed_dim_ / num_heads_};
    return transpose(reshape(linear(x, weight, bias), split), 1, 2);
  };
  return attend(heads(query, 0), heads(key, 1), heads(value, 2), masks);
}

Tensor MultiheadAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const AttentionMasks& masks) {
  AttentionOptions options;
  options.mask = merged(masks, q, k.size(-2));
  options.is_causal = masks.is_causal;
  options.dropout_p = is_training() ? options_.dropout : 0;
  const Tensor y = scaled_dot_product_attention(q, k, v, options);  // (N, heads, L, head_dim)
  return out_proj->forward(reshape(transpose(y, 1, 2), {q.size(0), q.size(2), embed_dim_}));
}

std::string MultiheadAttention::extra_repr() const {
  return absl::StrCat("embed_dim=", embed_dim_, ", num_heads=", num_heads_,
                      ", dropout=", options_.dropout);
}

}  // namespace lockstep::nn
