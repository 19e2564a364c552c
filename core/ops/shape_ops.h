#pragma once

#include <span>

#include "lockstep/core/tensor.h"

namespace lockstep {

// These return views of x where strides can say it; reshape copies where they cannot. Sizes and
// dims out of range are an Error(kInvalidArgument) that names the op and the shape.

Tensor reshape(const Tensor& x, const Shape& shape);  // one size may be -1
Tensor view(const Tensor& x, const Shape& shape);     // reshape that never copies: an error instead
Tensor permute(const Tensor& x, const Shape& dims);
Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1);
Tensor expand(const Tensor& x, const Shape& shape);  // -1 keeps a size
Tensor squeeze(const Tensor& x, int64_t dim);        // x itself where the size is not 1
Tensor squeeze(const Tensor& x);                     // every dimension of size 1
Tensor unsqueeze(const Tensor& x, int64_t dim);
Tensor flatten(const Tensor& x, int64_t start_dim = 0);
Tensor movedim(const Tensor& x, int64_t from, int64_t to);
// The elements (…, i, …, i + offset, …) as a last dimension.
Tensor diagonal(const Tensor& x, int64_t offset = 0, int64_t dim0 = 0, int64_t dim1 = 1);
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
// Views of x along `dim`: pieces of `size` (the last may be shorter), of the given sizes (which add
// up to x's), at most `count` equal ones (likewise), every slice without the dimension.
std::vector<Tensor> split(const Tensor& x, int64_t size, int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, const Shape& sizes, int64_t dim = 0);
std::vector<Tensor> chunk(const Tensor& x, int64_t count, int64_t dim = 0);
std::vector<Tensor> unbind(const Tensor& x, int64_t dim = 0);
Tensor contiguous(const Tensor& x);     // x itself where it is
Tensor channels_last(const Tensor& x);  // likewise, for (N, C, H, W)
Tensor clone(const Tensor& x);          // keeps a dense memory order
Tensor to(const Tensor& x, DType dtype);
// x itself where it is on `device`, else a contiguous copy there. From pinned memory to a CUDA
// device the host does not wait, so that x's values must stay until the device's stream has come
// by; x itself may be let go. Throws Error(kDevice) for a device that this build or machine does
// not have.
Tensor to(const Tensor& x, Device device);
// A contiguous copy of x, which is on the CPU, in page-locked memory, from which devices copy while
// the host goes on; x itself where it is there, or where there is no CUDA device. Not recorded.
// Throws Error(kInvalidArgument) for x on a device.
Tensor pin_memory(const Tensor& x);

}  // namespace lockstep
