#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

// x (..., in_features) -> x weight^T + bias (..., out_features). weight (out_features, in_features)
// and bias (out_features) start from U(-b, b), b = 1 / sqrt(in_features).
class Linear : public Module {
 public:
  Linear(int64_t in_features, int64_t out_features, bool with_bias = true);

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

  Tensor weight;
  Tensor bias;  // undefined where there is none

 private:
  int64_t in_features_;
  int64_t out_features_;
};

struct EmbeddingOptions {
  // The place of a row that starts from 0 and gets no gradient; none: there is no such row.
  std::optional<int64_t> padding_idx = {};
};

// Rows of weight (num_embeddings, embedding_dim), which starts from N(0, 1), at the places in x
// (any shape, i64): (..., embedding_dim). A place out of range is an Error(kInvalidArgument).
// Places may repeat: their gradients are added in the order of x, with the same bits every time.
class Embedding : public Module {
 public:
  Embedding(int64_t num_embeddings, int64_t embedding_dim, const EmbeddingOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

  Tensor weight;

 private:
  EmbeddingOptions options_;
};

}  // namespace lockstep::nn
