#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Reductions over `dims` (negative ones count from the end; none given: all). With keepdim the
// reduced dimensions stay with size 1. Sums of integers and bool are i64; 16-bit floats are summed
// in f32.
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
// Floating dtypes. The mean of no elements is NaN.
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
// `correction` is subtracted from the count: 1 is the unbiased variance, 0 the biased one. 16-bit
// floats are computed in f32.
Tensor var(const Tensor& x, const Shape& dims = {}, int64_t correction = 1, bool keepdim = false);
// The root of var(); its gradient where the variance is 0 is 0.
Tensor std(const Tensor& x, const Shape& dims = {}, int64_t correction = 1, bool keepdim = false);
// The product; of no elements it is 1. Integers and bool give i64.
Tensor prod(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
// A NaN is the largest and the smallest value. Where the extreme value occurs several times its
// gradient is shared evenly. Throws Error(kInvalidArgument) on no elements.
Tensor max(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
// The place (i64) of the first largest (smallest) value along `dim`, or in all of x, row-major. No
// gradient. Throws Error(kInvalidArgument) on no elements.
Tensor argmax(const Tensor& x, int64_t dim, bool keepdim = false);
Tensor argmin(const Tensor& x, int64_t dim, bool keepdim = false);
Tensor argmax(const Tensor& x);
Tensor argmin(const Tensor& x);
// The largest (smallest) values along `dim` and the places (i64) of the first of each; the gradient
// goes there alone. Throws Error(kInvalidArgument) on no elements.
struct Extremes {
  Tensor values;
  Tensor indices;
};
Extremes max_with_indices(const Tensor& x, int64_t dim, bool keepdim = false);
Extremes min_with_indices(const Tensor& x, int64_t dim, bool keepdim = false);
// (sum |x|^p)^(1/p) for p > 0, the largest |x| for p = infinity. The gradient at 0 is 0. Floating
// dtypes; 16-bit floats are computed in f32.
Tensor norm(const Tensor& x, double p = 2, const Shape& dims = {}, bool keepdim = false);
// log(sum(exp(x))), without overflow. Floating dtypes. Of no elements it is minus infinity.
Tensor logsumexp(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
// x[0] + … + x[i] along `dim`. Integers and bool give i64.
Tensor cumsum(const Tensor& x, int64_t dim);
// Whether all, or any, of the elements are not 0 (bool). No gradient.
Tensor all(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor any(const Tensor& x, const Shape& dims = {}, bool keepdim = false);

// The sum over the dimensions along which `shape` was broadcast to x's shape.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace lockstep
