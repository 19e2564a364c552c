#pragma once

#include <memory>

#include "lockstep/core/tensor.h"

namespace lockstep {

// How the statistics of a batch that is spread over several ranks become one. Both calls are
// collective: every rank of the group makes them in the same order.
class BatchNormGroup {
 public:
  virtual ~BatchNormGroup() = default;
  // Replaces this rank's mean (C), sum of squared deviations (C) and count by the group's.
  virtual void merge_statistics(Tensor& mean, Tensor& squared_deviations, int64_t& count) = 0;
  // The sum of x over the ranks, differentiable.
  virtual Tensor all_sum(const Tensor& x) = 0;
};

// Normalises x (N, C, …), 2 to 5 dimensions, over all but the channel dimension (Ioffe and Szegedy,
// 2015): (x - mean) / sqrt(var + eps) * weight + bias, with weight and bias (C) or undefined.
struct BatchNormArguments {
  Tensor weight;
  Tensor bias;
  // Updated in training, when defined: (1 - momentum) running + momentum batch; the variance
  // unbiased. Used instead of the batch's own statistics when `training` is false.
  Tensor running_mean;
  Tensor running_var;
  bool training = true;
  double momentum = 0.1;
  double eps = 1e-5;
  std::shared_ptr<BatchNormGroup> group;  // null: this rank alone
};

// In training the batch's biased variance normalises. One value per channel (over the whole group)
// is an Error(kInvalidArgument) in training. A batch of no samples has a result of none, and leaves
// the running statistics as they are.
Tensor batch_norm(const Tensor& x, const BatchNormArguments& arguments);

}  // namespace lockstep
