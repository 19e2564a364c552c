#pragma once

#include <cstdint>

#include "lockstep/core/ops/loss.h"
#include "lockstep/core/tensor.h"

namespace lockstep::nn {

// Losses as objects that carry their options; see core/ops/loss.h for each function.

struct CrossEntropyLoss {
  Reduction reduction = Reduction::kMean;
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  Tensor weight = {};

  Tensor operator()(const Tensor& logits, const Tensor& target) const {
    return cross_entropy(logits, target, {reduction, ignore_index, label_smoothing, weight});
  }
};

struct NLLLoss {
  Reduction reduction = Reduction::kMean;
  int64_t ignore_index = -100;
  Tensor weight = {};

  Tensor operator()(const Tensor& log_probabilities, const Tensor& target) const {
    return nll_loss(log_probabilities, target, {reduction, ignore_index, weight});
  }
};

struct MSELoss {
  Reduction reduction = Reduction::kMean;

  Tensor operator()(const Tensor& input, const Tensor& target) const {
    return mse_loss(input, target, reduction);
  }
};

struct L1Loss {
  Reduction reduction = Reduction::kMean;

  Tensor operator()(const Tensor& input, const Tensor& target) const {
    return l1_loss(input, target, reduction);
  }
};

struct SmoothL1Loss {
  Reduction reduction = Reduction::kMean;
  double beta = 1;

  Tensor operator()(const Tensor& input, const Tensor& target) const {
    return smooth_l1_loss(input, target, reduction, beta);
  }
};

struct HuberLoss {
  Reduction reduction = Reduction::kMean;
  double delta = 1;

  Tensor operator()(const Tensor& input, const Tensor& target) const {
    return huber_loss(input, target, reduction, delta);
  }
};

struct BCELoss {
  Reduction reduction = Reduction::kMean;
  Tensor weight = {};

  Tensor operator()(const Tensor& input, const Tensor& target) const {
    return binary_cross_entropy(input, target, reduction, weight);
  }
};

struct BCEWithLogitsLoss {
  Reduction reduction = Reduction::kMean;
  Tensor weight = {};
  Tensor pos_weight = {};

  Tensor operator()(const Tensor& logits, const Tensor& target) const {
    return binary_cross_entropy_with_logits(logits, target, {reduction, weight, pos_weight});
  }
};

struct KLDivLoss {
  Reduction reduction = Reduction::kMean;
  bool log_target = false;

  Tensor operator()(const Tensor& input, const Tensor& target) const {
    return kl_div(input, target, reduction, log_target);
  }
};

}  // namespace lockstep::nn
