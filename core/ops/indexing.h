#pragma once

#include <limits>
#include <optional>
#include <span>
#include <variant>

#include "lockstep/core/tensor.h"

namespace lockstep {

// Indexing as NumPy and PyTorch have it:
//
//   x.index({0, Slice(2, -1), kEllipsis, rows})       x[0, 2:-1, ..., rows]
//   x.index_put_({gt(x, 1.0)}, 1.0)                   x[x > 1] = 1

// Elements start, start + step, … before end. Negative numbers count from the end of the dimension;
// both ends are cut to it. The step is over 0.
struct Slice {
  Slice() = default;  // all of a dimension
  explicit Slice(int64_t first, std::optional<int64_t> before = std::nullopt, int64_t by = 1)
      : start(first), end(before), step(by) {}

  int64_t start = 0;
  std::optional<int64_t> end;
  int64_t step = 1;
};

struct NewAxis {};
struct Ellipsis {};
inline constexpr NewAxis kNewAxis;    // a dimension of size 1
inline constexpr Ellipsis kEllipsis;  // all dimensions that nothing else names

// One entry between the brackets: a number (the dimension goes), a Slice, kNewAxis, kEllipsis, a
// tensor of places (i64; negative ones count from the end), or a mask (bool; it stands for as many
// dimensions as it has, and for the places where it holds). Tensors of places broadcast to one
// shape, which takes the place of their dimensions; these become the first ones where a slice
// stands between them.
struct Index {
  Index(int64_t place) : value(place) {}          // NOLINT: implicit, to be written in braces
  Index(int place) : value(int64_t{place}) {}     // NOLINT
  Index(const Slice& slice) : value(slice) {}     // NOLINT
  Index(NewAxis axis) : value(axis) {}            // NOLINT
  Index(Ellipsis ellipsis) : value(ellipsis) {}   // NOLINT
  Index(const Tensor& places) : value(places) {}  // NOLINT

  std::variant<int64_t, Slice, NewAxis, Ellipsis, Tensor> value;
};

// x[indices]. A view of x where no tensor is among the indices. Differentiable in x. Throws
// Error(kInvalidArgument) that names the dimension for a place out of range and for too many
// indices.
Tensor index(const Tensor& x, std::span<const Index> indices);

// A copy of x in which x[indices] is `value`, broadcast to that shape; with `accumulate` it is
// added instead. Where a place occurs twice the later one stays. Differentiable in x and value. See
// Tensor::index_put_ for the form in place.
Tensor index_put(const Tensor& x, std::span<const Index> indices, const Tensor& value,
                 bool accumulate = false);

}  // namespace lockstep
