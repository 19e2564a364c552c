#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Reductions over `dims` (negative ones count from the end; none given: all). With keepdim the
// reduced dimensions stay with size 1. Sums of integers and bool are i64; 16-bit floats are summed
// in f32.
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
// Floating dtypes. The mean of no elements is NaN.
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
// `correction` is subtracted from the count: 1 is the unbiased variance, 0 the biased one.
Tensor var(const Tensor& x, const Shape& dims = {}, int64_t correction = 1, bool keepdim = false);
// A NaN is the largest and the smallest value. Where the extreme value occurs several times its
// gradient is shared evenly. Throws Error(kInvalidArgument) on no elements.
Tensor max(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
// The place (i64) of the first largest value along `dim`.
Tensor argmax(const Tensor& x, int64_t dim, bool keepdim = false);

// The sum over the dimensions along which `shape` was broadcast to x's shape.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace lockstep
