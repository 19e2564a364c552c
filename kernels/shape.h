#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"

namespace lockstep {

// Sizes of the dimensions, outermost first, or strides in elements. Up to six stay off the heap.
using Shape = absl::InlinedVector<int64_t, 6>;
using Strides = Shape;

// "(2, 3, 4)"; "()" for a scalar.
std::string to_string(const Shape& shape);

// The number of elements. Throws Error(kInvalidArgument) that names `op` where a size is negative
// or the product does not fit 64 bits (with 16 bytes an element to spare).
int64_t numel(const Shape& shape, std::string_view op = "shape");

// Row-major strides in elements.
Strides contiguous_strides(const Shape& shape);

// Channels-last strides of an (N, C, H, W) shape: C varies fastest.
Strides channels_last_strides(const Shape& shape);

// True where walking the dimensions in row-major order walks memory in order without gaps;
// dimensions of size 1 and empty shapes do not count.
bool is_contiguous(const Shape& shape, const Strides& strides);
bool is_channels_last(const Shape& shape, const Strides& strides);

// The shape that a and b broadcast to (NumPy's rule). Throws Error(kInvalidArgument) that names
// `op` and both shapes.
Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op);

// The strides with which a tensor of `shape` is seen as one of `wanted`, which it broadcasts to: 0
// along the dimensions that it is repeated along.
Strides expanded_strides(const Shape& shape, const Strides& strides, const Shape& wanted);

// A dimension counted from the end when negative. Throws Error(kInvalidArgument) out of range.
int64_t normalize_dim(int64_t dim, int64_t rank, std::string_view op);

}  // namespace lockstep
