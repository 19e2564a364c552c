#pragma once

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Softmax and cross-entropy for floating dtypes, computed in f32 for 16-bit ones. All views of a
// call have one shape and dtype unless said; any strides. Values are taken relative to the row's
// largest, so that nothing overflows.

// y = exp(x) / sum(exp(x)) along dimension `axis`.
struct Softmax {
  static void cpu(const View& x, const View& y, int64_t axis);
  static void cuda(const View& x, const View& y, int64_t axis);
};

// gx = y * (g - sum(g * y)), with y the forward's result.
struct SoftmaxBackward {
  static void cpu(const View& g, const View& y, const View& gx, int64_t axis);
  static void cuda(const View& g, const View& y, const View& gx, int64_t axis);
};

// y = x - log(sum(exp(x))) along dimension `axis`.
struct LogSoftmax {
  static void cpu(const View& x, const View& y, int64_t axis);
  static void cuda(const View& x, const View& y, int64_t axis);
};

// gx = g - exp(y) * sum(g), with y the forward's result.
struct LogSoftmaxBackward {
  static void cpu(const View& g, const View& y, const View& gx, int64_t axis);
  static void cuda(const View& g, const View& y, const View& gx, int64_t axis);
};

// y = log(sum(exp(x))) along dimension `axis`, where y's size is 1 and x's over 0.
struct LogSumExp {
  static void cpu(const View& x, const View& y, int64_t axis);
  static void cuda(const View& x, const View& y, int64_t axis);
};

// losses[n] = lse[n] - logits[n, targets[n]] with lse[n] = log(sum(exp(logits[n]))), for logits
// (N, C) and targets (N), i64; losses and lse are (N) in logits' dtype. A row whose target is
// ignore_index has loss 0. Any other target outside [0, C) is an Error(kInvalidArgument) that names
// the row and the value.
struct CrossEntropy {
  static void cpu(const View& logits, const View& targets, int64_t ignore_index, const View& losses,
                  const View& lse);
  static void cuda(const View& logits, const View& targets, int64_t ignore_index,
                   const View& losses, const View& lse);
};

// glogits[n, c] = g[n] * (exp(logits[n, c] - lse[n]) - (c == targets[n])), 0 in ignored rows; g and
// lse are (N) in logits' dtype.
struct CrossEntropyBackward {
  static void cpu(const View& logits, const View& targets, int64_t ignore_index, const View& lse,
                  const View& g, const View& glogits);
  static void cuda(const View& logits, const View& targets, int64_t ignore_index, const View& lse,
                   const View& g, const View& glogits);
};

}  // namespace lockstep::kernels
