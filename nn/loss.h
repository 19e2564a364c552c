#pragma once

#include <cstdint>

#include "lockstep/core/ops/softmax.h"
#include "lockstep/core/tensor.h"

namespace lockstep::nn {

// Losses as objects that carry their options; see core/ops/softmax.h for each function.

struct CrossEntropyLoss {
  Reduction reduction = Reduction::kMean;
  int64_t ignore_index = -100;

  Tensor operator()(const Tensor& logits, const Tensor& target) const {
    return cross_entropy(logits, target, reduction, ignore_index);
  }
};

struct MSELoss {
  Reduction reduction = Reduction::kMean;

  Tensor operator()(const Tensor& input, const Tensor& target) const {
    return mse_loss(input, target, reduction);
  }
};

}  // namespace lockstep::nn
