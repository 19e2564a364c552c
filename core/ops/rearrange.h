#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// What lies beyond the edge: a value; the tensor mirrored, without its edge; the edge itself.
enum class PadMode { kConstant, kReflect, kReplicate };

// x with more elements before and after: pads holds two numbers of 0 and more for each dimension,
// those of the last dimension first: {left, right, top, bottom, …}. `value` is for kConstant.
Tensor pad(const Tensor& x, const Shape& pads, PadMode mode = PadMode::kConstant, double value = 0);

// Elements in reverse order along each of `dims`.
Tensor flip(const Tensor& x, const Shape& dims);

// Elements moved by `shift` places along `dim`; those that leave at one end enter at the other.
Tensor roll(const Tensor& x, int64_t shift, int64_t dim);

// The lower (upper) triangle of the last two dimensions, 0 elsewhere; `diagonal` is the last
// (first) diagonal that stays, counted from the main one to the right.
Tensor tril(const Tensor& x, int64_t diagonal = 0);
Tensor triu(const Tensor& x, int64_t diagonal = 0);

// x repeated counts[d] times along dimension d. More counts than dimensions add leading ones.
Tensor tile(const Tensor& x, const Shape& counts);

// The values in order along `dim`, and where they stood (i64). Equal values keep their order; NaN
// counts as larger than all numbers. Gradients go where the values came from.
struct Sorted {
  Tensor values;
  Tensor indices;
};
Sorted sort(const Tensor& x, int64_t dim = -1, bool descending = false);
Tensor argsort(const Tensor& x, int64_t dim = -1, bool descending = false);
// The first k of sort(), the largest values first (or the smallest first).
Sorted topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true);

}  // namespace lockstep
