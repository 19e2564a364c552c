#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/ops/layer_norm.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct LayerNormOptions {
  double eps = 1e-5;
  bool elementwise_affine = true;  // with weight (from 1)
  bool bias = true;                // and bias (from 0)
};

// layer_norm() over the last dimensions of x, whose sizes are `shape`; weight and bias have that
// shape.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(const Shape& shape, const LayerNormOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

  Tensor weight;  // undefined where there is none, like bias
  Tensor bias;

 private:
  Shape shape_;
  LayerNormOptions options_;
};

struct GroupNormOptions {
  double eps = 1e-5;
  bool affine = true;  // with weight (from 1) and bias (from 0)
};

// group_norm() of x (N, num_channels, …); weight and bias are (num_channels).
class GroupNorm : public Module {
 public:
  GroupNorm(int64_t num_groups, int64_t num_channels, const GroupNormOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

  Tensor weight;
  Tensor bias;

 private:
  int64_t num_groups_;
  int64_t num_channels_;
  GroupNormOptions options_;
};

struct InstanceNormOptions {
  double eps = 1e-5;
  bool affine = false;  // with weight (from 1) and bias (from 0)
};

// instance_norm() of x (N, num_features, …), 3 dimensions and more, by each sample's own
// statistics in training and in eval mode; weight and bias are (num_features). PyTorch's
// InstanceNorm1d to 3d without running statistics, its default.
class InstanceNorm : public Module {
 public:
  explicit InstanceNorm(int64_t num_features, const InstanceNormOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

  Tensor weight;
  Tensor bias;

 private:
  int64_t num_features_;
  InstanceNormOptions options_;
};

}  // namespace lockstep::nn
