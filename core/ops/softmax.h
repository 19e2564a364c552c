#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

Tensor softmax(const Tensor& x, int64_t dim);
Tensor log_softmax(const Tensor& x, int64_t dim);

enum class Reduction { kNone, kMean, kSum };

// -log softmax(logits)[target] for logits (N, C) and targets (N, i64); (N) for kNone, else a
// scalar. Rows whose target is ignore_index count for nothing, in the mean's divisor too. A target
// out of range is an Error(kInvalidArgument) that names the row.
Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                     Reduction reduction = Reduction::kMean, int64_t ignore_index = -100);

// (input - target)^2, elements of equal shape.
Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean);

}  // namespace lockstep
