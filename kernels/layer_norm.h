#pragma once

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Normalisation of rows (Ba, Kiros and Hinton, 2016). A row is `x.numel() / mean.numel()`
// neighbours in row-major order. Floating dtypes, any strides; 16-bit ones are computed in f32.
// mean and rstd have one element for each row, contiguous, in the dtype that x is computed in;
// weight and bias, where not null, one for each place of a row, in x's dtype.

// y = (x - mean) rstd weight + bias with the row's mean and rstd = 1 / sqrt(var + eps), the
// variance biased. Null weight: 1; null bias: 0.
struct LayerNorm {
  static void cpu(const View& x, const View* weight, const View* bias, double eps, const View& y,
                  const View& mean, const View& rstd);
  static void cuda(const View& x, const View* weight, const View* bias, double eps, const View& y,
                   const View& mean, const View& rstd);
};

// The gradients of LayerNorm for g, that of y: gx in x's shape, and gweight and gbias, sums over
// the rows in an order that depends on the shape alone. Any of the three may be null.
struct LayerNormBackward {
  static void cpu(const View& g, const View& x, const View& mean, const View& rstd,
                  const View* weight, const View* gx, const View* gweight, const View* gbias);
  static void cuda(const View& g, const View& x, const View& mean, const View& rstd,
                   const View* weight, const View* gx, const View* gweight, const View* gbias);
};

}  // namespace lockstep::kernels
