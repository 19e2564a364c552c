#pragma once

#include <span>

#include "lockstep/core/tensor.h"

namespace lockstep {

// These return views of x where strides can say it; reshape copies where they cannot. Sizes and
// dims out of range are an Error(kInvalidArgument) that names the op and the shape.

Tensor reshape(const Tensor& x, const Shape& shape);  // one size may be -1
Tensor permute(const Tensor& x, const Shape& dims);
Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1);
Tensor expand(const Tensor& x, const Shape& shape);
Tensor squeeze(const Tensor& x, int64_t dim);
Tensor unsqueeze(const Tensor& x, int64_t dim);
Tensor flatten(const Tensor& x, int64_t start_dim = 0);
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length);
Tensor select(const Tensor& x, int64_t dim, int64_t index);
// Elements start, start + step, … below start + length * step.
Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step = 1);

// A zero tensor of `shape` that holds x in place of the given slice: the gradient of slice().
Tensor slice_scatter_zeros(const Tensor& x, const Shape& shape, int64_t dim, int64_t start,
                           int64_t step);

// Copies. cat joins along an existing dimension, stack along a new one.
Tensor cat(std::span<const Tensor> tensors, int64_t dim = 0);
Tensor stack(std::span<const Tensor> tensors, int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, int64_t size, int64_t dim = 0);  // views
Tensor contiguous(const Tensor& x);                                         // x itself where it is
Tensor channels_last(const Tensor& x);  // likewise, for (N, C, H, W)
Tensor clone(const Tensor& x);          // keeps a dense memory order
Tensor to(const Tensor& x, DType dtype);

}  // namespace lockstep
