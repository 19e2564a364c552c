#include "lockstep/nn/linear.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/index.h"
#include "lockstep/core/ops/matmul.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {

Linear::Linear(int64_t in_features, int64_t out_features, bool with_bias)
    : in_features_(in_features), out_features_(out_features) {
  check(in_features > 0 && out_features > 0, "Linear", [&] {
    return absl::StrCat("want in_features and out_features of 1 and more, got ", in_features,
                        " and ", out_features);
  });
  const double bound = 1 / std::sqrt(static_cast<double>(in_features));
  weight = Tensor::empty({out_features, in_features});
  uniform_(weight, -bound, bound);
  register_parameter("weight", weight);
  if (with_bias) {
    bias = Tensor::empty({out_features});
    uniform_(bias, -bound, bound);
    register_parameter("bias", bias);
  }
}

Tensor Linear::forward(const Tensor& x) { return linear(x, weight, bias); }

std::string Linear::extra_repr() const {
  return absl::StrCat("in_features=", in_features_, ", out_features=", out_features_,
                      ", bias=", bias.defined() ? "true" : "false");
}

Embedding::Embedding(int64_t num_embeddings, int64_t embedding_dim, const EmbeddingOptions& options)
    : options_(options) {
  check(num_embeddings > 0 && embedding_dim > 0, "Embedding", [&] {
    return absl::StrCat("want num_embeddings and embedding_dim of 1 and more, got ", num_embeddings,
                        " and ", embedding_dim);
  });
  const std::optional<int64_t> padding = options.padding_idx;
  check(!padding || (*padding >= 0 && *padding < num_embeddings), "Embedding", [&] {
    return absl::StrCat("want a padding_idx from 0 to ", num_embeddings - 1, ", got ", *padding);
  });
  weight = Tensor::empty({num_embeddings, embedding_dim});
  normal_(weight);
  if (padding) select(weight, 0, *padding).zero_();
  register_parameter("weight", weight);
}

Tensor Embedding::forward(const Tensor& x) {
  const Tensor y = embedding(weight, x);
  if (!options_.padding_idx) return y;
  const Tensor padding = unsqueeze(eq(x, static_cast<double>(*options_.padding_idx)), -1);
  return where(padding, y.detach(), y);
}

std::string Embedding::extra_repr() const {
  return absl::StrCat("num_embeddings=", weight.size(0), ", embedding_dim=", weight.size(1));
}

}  // namespace lockstep::nn
