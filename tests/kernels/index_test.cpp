#include "lockstep/kernels/index.h"

#include <gtest/gtest.h>

#include <string>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

Array index_of(const std::vector<int64_t>& places) {
  return filled(empty(DType::kI64, {static_cast<int64_t>(places.size())}, {2}),
                [&](int64_t k) { return static_cast<double>(places[static_cast<size_t>(k)]); });
}

// The row-major number, in a shape whose `axis` has `size` places, of element i of `shape` moved to
// place `at` of that axis.
int64_t moved(int64_t i, const Shape& shape, int64_t axis, int64_t size, int64_t at) {
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(axis) + 1; d < shape.size(); ++d) inner *= shape[d];
  const int64_t outer = i / (inner * shape[static_cast<size_t>(axis)]);
  return (outer * size + at) * inner + i % inner;
}

int64_t along(int64_t i, const Shape& shape, int64_t axis) {
  for (size_t d = shape.size() - 1; d > static_cast<size_t>(axis); --d) i /= shape[d];
  return i % shape[static_cast<size_t>(axis)];
}

const std::vector<int64_t> kPlaces = {3, 0, 3, 2, 3, 1, 0};
const Shape kShapes[] = {{4}, {4, 5}, {3, 4, 7}, {4, 33, 2}, {2, 3, 4}, {1, 4, 1}};

int64_t axis_of(const Shape& shape) {
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 4) return static_cast<int64_t>(d);
  }
  return 0;
}

TEST(IndexSelect, EveryDtypeAxisAndMemoryOrder) {
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    for (const Shape& shape : kShapes) {
      const int64_t axis = axis_of(shape);
      Shape picked = shape;
      picked[static_cast<size_t>(axis)] = 7;
      const Array index = index_of(kPlaces);
      const Array values = sample(dtype, shape, 0, 100);
      for (const Strides& from : some_strides(shape)) {
        for (const Strides& to : some_strides(picked)) {
          const Array x = with_strides(values, from);
          const Array y = empty(dtype, picked, to);
          IndexSelect::cpu(x.view, index.view, y.view, axis);
          for (int64_t i = 0; i < y.numel(); ++i) {
            const int64_t place = kPlaces[static_cast<size_t>(along(i, picked, axis))];
            ASSERT_EQ(y.get(i), x.get(moved(i, picked, axis, 4, place))) << i;
          }
        }
      }
    }
  }
}

TEST(IndexAdd, EveryDtypeAxisAndMemoryOrder) {
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    for (const Shape& shape : kShapes) {
      const int64_t axis = axis_of(shape);
      Shape picked = shape;
      picked[static_cast<size_t>(axis)] = 7;
      const Array index = index_of(kPlaces);
      const Array start = sample(dtype, shape, 0, 100);
      const Array values = sample(dtype, picked, 0, 100, 3);
      // Each addition is rounded, or wraps, as the dtype does.
      const Array want = with_strides(start, contiguous_strides(shape));
      for (int64_t k = 0; k < 7; ++k) {
        for (int64_t i = 0; i < values.numel(); ++i) {
          if (along(i, picked, axis) != k) continue;
          const int64_t at = moved(i, picked, axis, 4, kPlaces[static_cast<size_t>(k)]);
          double sum = want.get(at) + values.get(i);
          if (dtype == DType::kU8) sum = std::fmod(sum, 256);
          if (dtype == DType::kI8 && sum > 127) sum -= 256;
          if (dtype == DType::kF32) sum = static_cast<float>(sum);
          want.set(at, sum);
        }
      }
      for (const Strides& from : some_strides(picked)) {
        for (const Strides& to : some_strides(shape)) {
          const Array y = with_strides(start, to);
          IndexAdd::cpu(with_strides(values, from).view, index.view, y.view, axis);
          ASSERT_EQ(y.values(), want.values()) << name(dtype) << to_string(shape);
        }
      }
    }
  }
}

TEST(Index, SeveralThreadsGiveTheSame) {
  const Array x = sample(DType::kF16, {301, 517});
  std::vector<int64_t> places;
  for (int64_t k = 0; k < 301; ++k) places.push_back(k * k % 101);
  const Array index = index_of(places);
  std::vector<std::vector<double>> results;
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    const Array sums = filled(empty(DType::kF16, {101, 517}), [](int64_t) { return 0; });
    IndexAdd::cpu(x.view, index.view, sums.view, 0);
    const Array picked = empty(DType::kF16, {301, 517});
    IndexSelect::cpu(sums.view, index.view, picked.view, 0);
    results.push_back(picked.values());
  }
  set_num_threads(0);
  EXPECT_EQ(results[0], results[1]);
}

TEST(Index, APlaceOutsideIsAnErrorBeforeAnythingIsWritten) {
  for (int64_t bad : {int64_t{-1}, int64_t{4}, int64_t{1} << 40}) {
    const Array index = filled(empty(DType::kI64, {3}),
                               [&](int64_t k) { return k == 2 ? static_cast<double>(bad) : 1; });
    const Array wide = filled(empty(DType::kF32, {4, 2}), [](int64_t) { return 5; });
    const Array slices = filled(empty(DType::kF32, {3, 2}), [](int64_t) { return 6; });
    for (bool adds : {false, true}) {
      try {
        adds ? IndexAdd::cpu(slices.view, index.view, wide.view, 0)
             : IndexSelect::cpu(wide.view, index.view, slices.view, 0);
        FAIL();
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
        const std::string want = "got " + std::to_string(bad) + " at 2";
        EXPECT_NE(std::string(e.what()).find(want), std::string::npos) << e.what();
      }
    }
    EXPECT_EQ(wide.values(), std::vector<double>(8, 5));
    EXPECT_EQ(slices.values(), std::vector<double>(6, 6));
  }
}

TEST(Index, NothingIsNoWork) {
  const Array x = sample(DType::kF32, {4, 3});
  const Array none = empty(DType::kI64, {0});
  const Array y = empty(DType::kF32, {0, 3});
  IndexSelect::cpu(x.view, none.view, y.view, 0);
  IndexAdd::cpu(y.view, none.view, x.view, 0);
  const Array hollow = empty(DType::kF32, {4, 0});
  const Array index = index_of({1, 2});
  const Array out = empty(DType::kF32, {2, 0});
  IndexSelect::cpu(hollow.view, index.view, out.view, 0);
  IndexAdd::cpu(out.view, index.view, hollow.view, 0);
}

}  // namespace
}  // namespace lockstep::kernels
