#include "lockstep/kernels/strided.h"

#include <cstdlib>

namespace lockstep::kernels {

Shape memory_order(const View& y) {
  Shape order;
  for (size_t d = 0; d < y.shape.size(); ++d) {
    if (y.shape[d] != 1) order.push_back(static_cast<int64_t>(d));
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::abs(y.strides[static_cast<size_t>(a)]) >
           std::abs(y.strides[static_cast<size_t>(b)]);
  });
  return order;
}

Walk::Walk(const View& view, const Shape& order) {
  for (int64_t dim : order) {
    const auto d = static_cast<size_t>(dim);
    const int64_t size = view.shape[d];
    const int64_t stride = view.strides[d];
    if (!shape.empty() && strides.back() == stride * size) {
      shape.back() *= size;
      strides.back() = stride;
    } else {
      shape.push_back(size);
      strides.push_back(stride);
    }
  }
}

}  // namespace lockstep::kernels
