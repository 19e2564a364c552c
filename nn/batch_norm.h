#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/core/ops/norm.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct BatchNormOptions {
  double eps = 1e-5;
  // The weight of the new batch in the running statistics; none: 1 / num_batches_tracked, so that
  // they are the plain average over all batches.
  std::optional<double> momentum = 0.1;
  bool affine = true;               // with weight (from 1) and bias (from 0)
  bool track_running_stats = true;  // else each batch's own statistics are used, in eval mode too
};

// batch_norm() over the channels of x (N, num_features, …), 2 to 5 dimensions. In training mode the
// batch's statistics normalise, and the running ones follow: running_mean (from 0) and running_var
// (from 1, unbiased), both (num_features), and num_batches_tracked (i64, no dimensions). In eval
// mode the running ones normalise.
//
// With a group (see SyncBatchNorm) the statistics in training are those of the batches of all its
// ranks, and forward and backward are collective. In eval mode nothing is.
class BatchNorm : public Module {
 public:
  explicit BatchNorm(int64_t num_features, const BatchNormOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

  // Null: this rank alone.
  void set_group(std::shared_ptr<BatchNormGroup> group) { group_ = std::move(group); }
  const std::shared_ptr<BatchNormGroup>& group() const { return group_; }
  const BatchNormOptions& options() const { return options_; }
  int64_t num_features() const { return num_features_; }

  // Undefined where the options leave them out.
  Tensor weight;
  Tensor bias;
  Tensor running_mean;
  Tensor running_var;
  Tensor num_batches_tracked;

 private:
  int64_t num_features_;
  BatchNormOptions options_;
  std::shared_ptr<BatchNormGroup> group_;
};

// BatchNorm that takes no other x than (N, C) and (N, C, L).
class BatchNorm1d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;
  Tensor forward(const Tensor& x) override;
};

// BatchNorm that takes no other x than (N, C, H, W).
class BatchNorm2d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;
  Tensor forward(const Tensor& x) override;
};

// BatchNorm that takes no other x than (N, C, D, H, W).
class BatchNorm3d : public BatchNorm {
 public:
  using BatchNorm::BatchNorm;
  Tensor forward(const Tensor& x) override;
};

}  // namespace lockstep::nn
