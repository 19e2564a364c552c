#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "arrays.h"

// Parameters and gradients for tests of optimisers' steps.
namespace lockstep::testing {

// Calls f(dtype, shape, strides) for floating dtypes, some shapes and their dense memory orders.
template <class F>
void for_each_parameter(const F& f) {
  for (DType dtype : kFloats) {
    for (const Shape& shape : {Shape{1}, Shape{}, Shape{7, 13}, Shape{3, 5, 3, 3}, Shape{0, 3}}) {
      std::vector<Strides> orders = some_strides(shape);
      orders.pop_back();  // it has gaps
      for (const Strides& strides : orders) {
        SCOPED_TRACE(std::string(name(dtype)) + to_string(shape) + " by " + to_string(strides));
        f(dtype, shape, strides);
      }
    }
  }
}

inline Array zeros(DType dtype, const Shape& shape, const Strides& strides) {
  return filled(empty(dtype, shape, strides), [](int64_t) { return 0; });
}

// `factor` roundings of the dtype, for values around 1 in size.
inline void expect_near(const Array& x, const std::vector<double>& want, double factor) {
  const double eps = epsilon(x.view.dtype);
  for (int64_t i = 0; i < x.numel(); ++i) {
    ASSERT_TRUE(close(x.get(i), want[static_cast<size_t>(i)], factor * eps, factor * eps)) << i;
  }
}

}  // namespace lockstep::testing
