#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Slices of x along `dim` at the places in `index` (i64, one dimension), in that order. A place
// out of range is an Error(kInvalidArgument) that names it.
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);

// A zero tensor of `shape` to which the slices of x along `dim` were added at the places in
// `index`; places may repeat. The gradient of index_select.
Tensor index_add(const Shape& shape, int64_t dim, const Tensor& index, const Tensor& x);

// Rows of weight (V, D) at index (any shape, i64): (index..., D).
Tensor embedding(const Tensor& weight, const Tensor& index);

}  // namespace lockstep
