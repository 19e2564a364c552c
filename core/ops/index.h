#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Elements picked by numbers that stand in another tensor. Indices are i64; a place out of range is
// an Error(kInvalidArgument) that names it.

// Slices of x along `dim` at the places in `index` (one dimension), in that order.
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);

// A zero tensor of `shape` to which the slices of x along `dim` were added at the places in
// `index`; places may repeat. The gradient of index_select.
Tensor index_add(const Shape& shape, int64_t dim, const Tensor& index, const Tensor& x);

// Rows of weight (V, D) at index (any shape, i64): (index..., D).
Tensor embedding(const Tensor& weight, const Tensor& index);

// out[i, j, k] = x[i, index[i, j, k], k] for dim 1, and likewise for others, in index's shape,
// which has as many dimensions as x and is nowhere larger but along `dim`.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);

// x with source[i, j, k] added at [i, index[i, j, k], k] for dim 1, and likewise for others; places
// may repeat. index has source's shape, which is nowhere larger than x's but along `dim`.
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);

// x with source[i, j, k] put at [i, index[i, j, k], k] for dim 1, and likewise for others. Where a
// place occurs several times the last one (the largest j) stays.
Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);

// x with `value` wherever mask (bool, broadcast to x's shape) holds.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

// The elements of x where mask (bool) holds, in row-major order (n); both broadcast.
Tensor masked_select(const Tensor& x, const Tensor& mask);

// The places (n, x.dim()) of the elements that are not 0, in row-major order. No gradient.
Tensor nonzero(const Tensor& x);

// (index..., classes), i64: 1 at each index, 0 elsewhere. No gradient.
Tensor one_hot(const Tensor& index, int64_t classes);

}  // namespace lockstep
