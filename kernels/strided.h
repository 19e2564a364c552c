#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/kernels/shape.h"
#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Ways to walk strided views as few, long runs.

// The dimensions of `y` from the largest stride to the smallest: an order in which a dense tensor,
// whatever its permutation, is written from front to back. Dimensions of size 1 are left out;
// among equal strides the order stays.
Shape memory_order(const View& y);

// One view's memory, walked in a given order of its dimensions, neighbours merged where one stride
// says both. A view that is dense in that order has one dimension of stride 1 left, a scalar that
// is broadcast one of stride 0; one element has no dimension.
struct Walk {
  Shape shape;
  Strides strides;

  Walk() = default;
  Walk(const View& view, const Shape& order);

  int64_t inner_size() const { return shape.empty() ? 1 : shape.back(); }
  int64_t inner_stride() const { return strides.empty() ? 1 : strides.back(); }
  bool dense() const { return shape.size() <= 1 && inner_stride() == 1; }
  bool scalar() const { return shape.size() == 1 && strides[0] == 0; }
};

// Calls f(offset, length) for the runs along the innermost dimension of `walk` that cover elements
// [begin, begin + count) of the walk: element i of a run is at offset + i * inner_stride().
template <class F>
void for_each_run(const Walk& walk, int64_t begin, int64_t count, const F& f) {
  if (count <= 0) return;
  const size_t rank = walk.shape.size();
  if (rank <= 1) {
    f(begin * walk.inner_stride(), count);
    return;
  }
  Shape index(rank, 0);
  int64_t rest = begin;
  int64_t offset = 0;
  for (size_t d = rank; d-- > 0;) {
    index[d] = rest % walk.shape[d];
    rest /= walk.shape[d];
    offset += index[d] * walk.strides[d];
  }
  while (true) {
    const int64_t length = std::min(count, walk.shape[rank - 1] - index[rank - 1]);
    f(offset, length);
    count -= length;
    if (count <= 0) return;
    offset -= index[rank - 1] * walk.strides[rank - 1];
    index[rank - 1] = 0;
    for (size_t d = rank - 1; d-- > 0;) {
      offset += walk.strides[d];
      if (++index[d] < walk.shape[d]) break;
      offset -= walk.shape[d] * walk.strides[d];
      index[d] = 0;
    }
  }
}

}  // namespace lockstep::kernels
