#include "lockstep/kernels/gather.h"

#include <gmock/gmock.h>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const Shape kLarge = {3, 5, 4};

// Small enough in the other dimensions, larger along `axis`.
Shape small_shape(size_t axis) {
  Shape shape = {2, 3, 3};
  shape[axis] = 7;
  return shape;
}

Array index_for(const Shape& shape, int64_t size) {
  return filled(empty(DType::kI64, shape),
                [size](int64_t i) { return static_cast<double>((i * i + 3 * i) % size); });
}

// The row-major number in `large` of element i of `small` moved to `place` of the axis.
int64_t moved(int64_t i, const Shape& small, const Shape& large, size_t axis, int64_t place) {
  int64_t out = 0;
  int64_t step = 1;
  for (size_t d = small.size(); d-- > 0;) {
    out += (d == axis ? place : i % small[d]) * step;
    i /= small[d];
    step *= large[d];
  }
  return out;
}

TEST(Gather, EveryDtypeAxisAndMemoryOrder) {
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    for (size_t axis = 0; axis < 3; ++axis) {
      const Shape small = small_shape(axis);
      const Array index = index_for(small, kLarge[axis]);
      const Array values = sample(dtype, kLarge, 0, 100);
      for (const Strides& strides : some_strides(kLarge)) {
        const Array x = with_strides(values, strides);
        for (const Strides& to : some_strides(small)) {
          const Array y = empty(dtype, small, to);
          Gather::cpu(x.view, with_strides(index, to).view, y.view, static_cast<int64_t>(axis));
          for (int64_t i = 0; i < y.numel(); ++i) {
            const auto place = static_cast<int64_t>(index.get(i));
            ASSERT_EQ(y.get(i), x.get(moved(i, small, kLarge, axis, place))) << i;
          }
        }
      }
    }
  }
}

TEST(ScatterAdd, EveryDtypeAxisAndMemoryOrder) {
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    for (size_t axis = 0; axis < 3; ++axis) {
      const Shape small = small_shape(axis);
      const Array index = index_for(small, kLarge[axis]);
      const Array start = sample(dtype, kLarge, 0, 3);
      const Array values = sample(dtype, small, 0, 3, 1);
      const Array want = with_strides(start, contiguous_strides(kLarge));
      for (int64_t i = 0; i < values.numel(); ++i) {
        const int64_t at = moved(i, small, kLarge, axis, static_cast<int64_t>(index.get(i)));
        want.set(at, want.get(at) + values.get(i));  // rounds as the dtype does
      }
      for (const Strides& strides : some_strides(kLarge)) {
        const Array y = with_strides(start, strides);
        ScatterAdd::cpu(values.view, index.view, y.view, static_cast<int64_t>(axis));
        for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(y.get(i), want.get(i)) << i;
      }
    }
  }
}

TEST(Scatter, KeepsTheLastOfSeveralForOnePlace) {
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    for (size_t axis = 0; axis < 3; ++axis) {
      const Shape small = small_shape(axis);
      const Array index = index_for(small, kLarge[axis]);
      const Array start = sample(dtype, kLarge, 0, 100);
      const Array values = sample(dtype, small, 0, 100, 1);
      const Array want = with_strides(start, contiguous_strides(kLarge));
      for (int64_t i = 0; i < values.numel(); ++i) {  // row-major: ascending along every axis
        want.set(moved(i, small, kLarge, axis, static_cast<int64_t>(index.get(i))), values.get(i));
      }
      for (const Strides& strides : some_strides(kLarge)) {
        const Array y = with_strides(start, strides);
        Scatter::cpu(values.view, index.view, y.view, static_cast<int64_t>(axis));
        for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(y.get(i), want.get(i)) << i;
      }
    }
  }
}

TEST(ScatterAdd, GivesTheSameBitsOnAnyNumberOfThreads) {
  const Shape shape = {257, 301};
  const Array index = index_for(shape, 5);
  const Array x = sample(DType::kF32, shape);
  std::vector<double> once;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    const Array y = filled(empty(DType::kF32, {5, 301}), [](int64_t) { return 0; });
    ScatterAdd::cpu(x.view, index.view, y.view, 0);
    if (threads == 1) once = y.values();
    EXPECT_EQ(y.values(), once) << threads;
  }
  set_num_threads(0);
}

TEST(Gather, NamesAPlaceOutOfRangeBeforeAnythingIsWritten) {
  const Array x = sample(DType::kF32, {3, 4});
  const Array index = filled(empty(DType::kI64, {2, 2}), [](int64_t i) { return i == 3 ? 4 : i; });
  const Array y = filled(empty(DType::kF32, {2, 2}), [](int64_t) { return 7; });
  EXPECT_THAT([&] { Gather::cpu(x.view, index.view, y.view, 1); },
              ThrowsMessage<Error>(HasSubstr("want places in [0, 4), got 4 at 1 of dimension 1")));
  EXPECT_THAT([&] { ScatterAdd::cpu(y.view, index.view, x.view, 0); },
              ThrowsMessage<Error>(HasSubstr("want places in [0, 3), got 4")));
  EXPECT_EQ(y.get(0), 7);
}

TEST(Gather, OfNothing) {
  const Array x = sample(DType::kF32, {3, 4});
  const Array index = empty(DType::kI64, {0, 4});
  const Array y = empty(DType::kF32, {0, 4});
  Gather::cpu(x.view, index.view, y.view, 0);
  ScatterAdd::cpu(y.view, index.view, x.view, 0);
  EXPECT_EQ(x.values(), sample(DType::kF32, {3, 4}).values());
}

}  // namespace
}  // namespace lockstep::kernels
