#pragma once

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Batch normalisation (Ioffe and Szegedy, 2015) of x (N, C, ...) over all but the channels, 2
// dimensions and more, floating dtypes, any strides; contiguous and channels-last memory is fast.
// Cut so that statistics and sums of several ranks can be merged between the passes. Statistics and
// sums are (C), any stride, f64 for f64 and f32 for the other dtypes; weight and bias are (C) of
// any floating dtype, or null.

// Per channel: the mean, and M2, the sum of squared deviations from that mean, merged block by
// block (Chan, Golub and LeVeque, 1979). Zeros where there are no elements.
struct BatchNormStats {
  static void cpu(const View& x, const View& mean, const View& m2);
  static void cuda(const View& x, const View& mean, const View& m2);
};

// y = (x - mean) * invstd * weight + bias.
struct BatchNormApply {
  static void cpu(const View& x, const View& mean, const View& invstd, const View* weight,
                  const View* bias, const View& y);
  static void cuda(const View& x, const View& mean, const View& invstd, const View* weight,
                   const View* bias, const View& y);
};

// Per channel: sum_g = sum(g) (the bias's gradient) and sum_g_xhat = sum(g * xhat) (the weight's),
// with xhat = (x - mean) * invstd.
struct BatchNormBackwardReduce {
  static void cpu(const View& g, const View& x, const View& mean, const View& invstd,
                  const View& sum_g, const View& sum_g_xhat);
  static void cuda(const View& g, const View& x, const View& mean, const View& invstd,
                   const View& sum_g, const View& sum_g_xhat);
};

// gx = weight * invstd * (g - sum_g / count - xhat * sum_g_xhat / count), which is the derivative
// through the statistics too; sums and count (elements per channel, at least 1) are those of all
// ranks together. With zero sums it is the gradient under fixed statistics.
struct BatchNormBackwardApply {
  static void cpu(const View& g, const View& x, const View& mean, const View& invstd,
                  const View* weight, const View& sum_g, const View& sum_g_xhat, int64_t count,
                  const View& gx);
  static void cuda(const View& g, const View& x, const View& mean, const View& invstd,
                   const View* weight, const View& sum_g, const View& sum_g_xhat, int64_t count,
                   const View& gx);
};

}  // namespace lockstep::kernels
