#include "lockstep/kernels/strided.h"

#include <gtest/gtest.h>

#include <vector>

#include "arrays.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

TEST(Walk, ADenseViewIsOneRunInItsOwnOrder) {
  const Shape shape = {3, 5, 1, 7};
  for (const Strides& strides : some_strides(shape)) {
    const View x{nullptr, DType::kF32, kCpu, shape, strides};
    const Walk walk(x, memory_order(x));
    ASSERT_EQ(walk.shape, Shape{105}) << to_string(strides);
    const bool gaps = strides == some_strides(shape).back();
    EXPECT_EQ(walk.dense(), !gaps);
  }
}

TEST(Walk, AnExpandedScalarIsOneStepOfZero) {
  const View y{nullptr, DType::kF32, kCpu, {3, 5}, {1, 3}};
  const View x{nullptr, DType::kF32, kCpu, {3, 5}, {0, 0}};
  const Walk walk(x, memory_order(y));
  EXPECT_TRUE(walk.scalar());
  EXPECT_FALSE(walk.dense());
}

TEST(Walk, OneElementHasNoDimension) {
  const View x{nullptr, DType::kF32, kCpu, {1, 1}, {7, 3}};
  const Walk walk(x, memory_order(x));
  EXPECT_TRUE(walk.shape.empty());
  EXPECT_TRUE(walk.dense());
}

// Runs from any start and of any length cover the elements that counting by hand gives.
TEST(Walk, RunsCoverWhatWasAskedFor) {
  const Shape shape = {3, 4, 5};
  const View x{nullptr, DType::kF32, kCpu, shape, {40, 1, 7}};
  for (const Shape& order : {Shape{0, 1, 2}, Shape{2, 0, 1}, memory_order(x)}) {
    std::vector<int64_t> all;
    const auto size = [&](size_t k) { return shape[static_cast<size_t>(order[k])]; };
    const auto stride = [&](size_t k) { return x.strides[static_cast<size_t>(order[k])]; };
    for (int64_t i = 0; i < size(0); ++i) {
      for (int64_t j = 0; j < size(1); ++j) {
        for (int64_t k = 0; k < size(2); ++k) {
          all.push_back(i * stride(0) + j * stride(1) + k * stride(2));
        }
      }
    }
    const Walk walk(x, order);
    for (int64_t begin = 0; begin < 60; begin += 7) {
      for (int64_t count = 0; begin + count <= 60; count += 3) {
        std::vector<int64_t> seen;
        for_each_run(walk, begin, count, [&](int64_t offset, int64_t length) {
          for (int64_t i = 0; i < length; ++i) seen.push_back(offset + i * walk.inner_stride());
        });
        ASSERT_EQ(seen, std::vector<int64_t>(all.begin() + begin, all.begin() + begin + count));
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
