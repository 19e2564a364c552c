#include "lockstep/kernels/resize.h"

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

// From 5 places to 7, the last of which is one place alone.
const Interpolation kHow = {.low = {0, 0, 1, 2, 2, 3, 4},
                            .high = {1, 1, 2, 3, 3, 4, 4},
                            .weight = {0, 0.75, 0.3, 0.125, 0.9, 0.4, 0}};

Shape with_size(Shape shape, int64_t axis, int64_t size) {
  shape[static_cast<size_t>(axis)] = size;
  return shape;
}

// Element i of a row-major (…, to, …) as place `at` of the axis in (…, from, …).
int64_t moved(int64_t i, int64_t inner, int64_t to, int64_t from, int64_t at) {
  return (i / inner / to * from + at) * inner + i % inner;
}

TEST(Interpolate, EveryAxisMemoryOrderAndDtype) {
  for (DType dtype : kFloats) {
    for (int64_t axis : {0, 1, 2}) {
      const Shape small = with_size({3, 4, 6}, axis, 5), large = with_size({3, 4, 6}, axis, 7);
      const int64_t inner = contiguous_strides(small)[static_cast<size_t>(axis)];
      const Array values = sample(dtype, small);
      const Array gradients = sample(dtype, large, -1.5, 1.5, 2);
      for (const Strides& order : some_strides(small)) {
        const Array x = with_strides(values, order);
        const Array y = empty(dtype, large, some_strides(large)[1]);
        Interpolate::cpu(x.view, y.view, axis, kHow);
        const Array gx = empty(dtype, small, order);
        InterpolateBackward::cpu(gradients.view, gx.view, axis, kHow);
        std::vector<double> want(static_cast<size_t>(x.numel()), 0.0);
        for (int64_t i = 0; i < y.numel(); ++i) {
          const auto k = static_cast<size_t>(i / inner % 7);
          const int64_t low = moved(i, inner, 7, 5, kHow.low[k]);
          const int64_t high = moved(i, inner, 7, 5, kHow.high[k]);
          const double w = kHow.weight[k];
          ASSERT_TRUE(close(y.get(i), x.get(low) * (1 - w) + x.get(high) * w, epsilon(dtype),
                            4 * epsilon(dtype)))
              << name(dtype) << " axis " << axis << " at " << i;
          want[static_cast<size_t>(low)] += gradients.get(i) * (1 - w);
          want[static_cast<size_t>(high)] += gradients.get(i) * w;
        }
        for (int64_t i = 0; i < gx.numel(); ++i) {
          ASSERT_TRUE(
              close(gx.get(i), want[static_cast<size_t>(i)], epsilon(dtype), 8 * epsilon(dtype)))
              << name(dtype) << " axis " << axis << " at " << i;
        }
      }
    }
  }
}

TEST(Interpolate, SeveralThreadsGiveTheSame) {
  const Array x = sample(DType::kF32, {900, 5, 31});
  const Array g = sample(DType::kF32, {900, 7, 31});
  const auto run = [&](int threads) {
    set_num_threads(threads);
    const Array y = empty(DType::kF32, g.shape());
    const Array gx = empty(DType::kF32, x.shape());
    Interpolate::cpu(x.view, y.view, 1, kHow);
    InterpolateBackward::cpu(g.view, gx.view, 1, kHow);
    set_num_threads(0);
    return std::pair(y.values(), gx.values());
  };
  EXPECT_EQ(run(1), run(3));
}

TEST(Interpolate, OfNothingIsNoWork) {
  const Array x = empty(DType::kF32, {0, 5});
  const Array y = empty(DType::kF32, {0, 7});
  Interpolate::cpu(x.view, y.view, 1, kHow);
  InterpolateBackward::cpu(y.view, x.view, 1, kHow);
}

}  // namespace
}  // namespace lockstep::kernels
