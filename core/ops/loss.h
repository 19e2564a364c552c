#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

// Losses of floating tensors. Every one gives a loss for each element or row (kNone), their sum,
// or their mean, which of no elements is NaN. Input and target of the element-wise ones have one
// shape and dtype, and both may require a gradient.
// kBatchMean, of kl_div alone, divides the sum by the size of the first dimension.
enum class Reduction { kNone, kMean, kSum, kBatchMean };

struct CrossEntropyOptions {
  Reduction reduction = Reduction::kMean;
  // Rows with this class count for nothing, in the mean's divisor too.
  int64_t ignore_index = -100;
  // Part of the target that is shared out evenly among all classes (Szegedy et al., 2016).
  double label_smoothing = 0;
  // A factor for each class (C); undefined: 1. The mean of losses with classes as targets is then
  // the weighted one: its divisor is the sum of the targets' weights.
  Tensor weight = {};
};

// -log softmax(logits)[target] for logits (N, C), or (N, C, …) with the classes along dimension 1.
// The target holds classes (N, …), i64, or probabilities in logits' shape and dtype, for which the
// loss is -sum(target log softmax(logits)) over the classes, and its mean is over the rows. A class
// out of range is an Error(kInvalidArgument) that names the row.
Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                     const CrossEntropyOptions& options);
Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                     Reduction reduction = Reduction::kMean, int64_t ignore_index = -100);

struct NLLLossOptions {
  Reduction reduction = Reduction::kMean;
  int64_t ignore_index = -100;
  Tensor weight = {};  // as in CrossEntropyOptions
};

// -log_probabilities[target] for log-probabilities (N, C) or (N, C, …) and classes (N, …), i64.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& target,
                const NLLLossOptions& options = {});

// (input - target)^2.
Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean);
// |input - target|; its gradient at 0 is 0.
Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean);
// d^2 / (2 beta) where d = |input - target| is below beta, else d - beta / 2 (Girshick, 2015).
// beta = 0 is l1_loss.
Tensor smooth_l1_loss(const Tensor& input, const Tensor& target,
                      Reduction reduction = Reduction::kMean, double beta = 1);
// d^2 / 2 where d = |input - target| is below delta, else delta (d - delta / 2) (Huber, 1964).
Tensor huber_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean,
                  double delta = 1);

// -(target log(input) + (1 - target) log(1 - input)) for probabilities in [0, 1], an
// Error(kInvalidArgument) otherwise. Logarithms are no less than -100, so that the loss is finite,
// and the gradient is (input - target) / max(input (1 - input), 1e-12). `weight`, where defined,
// multiplies the elements' losses and broadcasts.
Tensor binary_cross_entropy(const Tensor& input, const Tensor& target,
                            Reduction reduction = Reduction::kMean,
                            const Tensor& weight = Tensor());

struct BCEWithLogitsOptions {
  Reduction reduction = Reduction::kMean;
  Tensor weight = {};      // multiplies the elements' losses, broadcasts
  Tensor pos_weight = {};  // multiplies the target's part alone, broadcasts
};

// binary_cross_entropy of sigmoid(logits), without its loss of digits and without bounds.
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                        const BCEWithLogitsOptions& options = {});

// target (log(target) - input), with log-probabilities as input and 0 log(0) = 0; the target holds
// logarithms too where log_target is true. The mean is over all elements; kBatchMean of rows is the
// divergence of Kullback and Leibler.
Tensor kl_div(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean,
              bool log_target = false);

}  // namespace lockstep
