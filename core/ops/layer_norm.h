#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Normalisations of each sample by itself: (x - mean) / sqrt(var + eps) * weight + bias, with the
// biased variance of the elements that are normalised together. weight and bias may be undefined:
// 1 and 0. They have x's dtype; statistics of 16-bit tensors are f32.

// Over the last dimensions, those of `normalized_shape`, which weight and bias have too (Ba, Kiros
// and Hinton, 2016).
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = Tensor(),
                  const Tensor& bias = Tensor(), double eps = 1e-5);

// Over groups of neighbouring channels of x (N, C, …) with all that follows the channels (Wu and
// He, 2018). weight and bias are (C), and num_groups divides C.
Tensor group_norm(const Tensor& x, int64_t num_groups, const Tensor& weight = Tensor(),
                  const Tensor& bias = Tensor(), double eps = 1e-5);

// Over all that follows the channels of x (N, C, …), of 3 dimensions and more: group_norm with
// groups of one channel (Ulyanov, Vedaldi and Lempitsky, 2016). Throws Error(kInvalidArgument) for
// one value per channel, of which nothing would be left.
Tensor instance_norm(const Tensor& x, const Tensor& weight = Tensor(),
                     const Tensor& bias = Tensor(), double eps = 1e-5);

}  // namespace lockstep
