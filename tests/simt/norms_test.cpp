// Batch and layer norm of kernels/cuda/ against the CPU's.
#include <gmock/gmock.h>

#include "expect_same.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/layer_norm.h"

namespace lockstep::testing {
namespace {

// Of batch norm: dense orders, gaps, channels of a number that fills packs and of one that does
// not, no samples, and more elements of a channel than one block takes.
const std::vector<Shape> kBatches = {{7, 3},    {1, 3, 1},       {5, 3, 7},  {3, 8, 5, 4},
                                     {0, 3, 2}, {2, 3, 1, 5, 2}, {9, 2, 601}};

DType statistics_of(DType dtype) { return dtype == DType::kF64 ? dtype : DType::kF32; }

Array vector_of(DType dtype, int64_t channels, double low, double high, int64_t salt) {
  return with_strides(sample(dtype, {channels}, low, high, salt), {3});
}

template <class F>
void for_batches(const F& f) {
  for (DType dtype : kFloats) {
    for (const Shape& shape : kBatches) {
      for (const Strides& strides : some_strides(shape)) {
        f(dtype, with_strides(sample(dtype, shape, 1, 4), strides),
          dtype == DType::kF32 && numel(shape) < 200 ? 20 : 1);
      }
    }
  }
}

TEST(CudaNorms, BatchStatisticsAreTheCpus) {
  for_batches([](DType dtype, const Array& x, int schedules) {
    const DType stats = statistics_of(dtype);
    const int64_t channels = x.shape()[1];
    const int64_t count = channels == 0 ? 0 : x.numel() / channels;
    expect_same(
        "batch_norm's statistics",
        {x, vector_of(stats, channels, 0, 1, 1), vector_of(stats, channels, 0, 1, 2)}, 1, 8,
        [](const Views& v) { launch<kernels::BatchNormStats>(v[0].device, v[0], v[1], v[2]); },
        schedules, 8 * count);
  });
}

// A mean that is large beside the deviations costs few digits of them; sums of squares would have
// none left.
TEST(CudaNorms, BatchStatisticsOfALargeMean) {
  const Array x = filled(empty(DType::kF32, {301, 3, 7}),
                         [](int64_t i) { return 4096 + static_cast<double>(i % 5); });
  expect_same(
      "batch_norm's statistics", {x, empty(DType::kF32, {3}), empty(DType::kF32, {3})}, 1, 100,
      [](const Views& v) { launch<kernels::BatchNormStats>(v[0].device, v[0], v[1], v[2]); });
}

TEST(CudaNorms, BatchNormIsTheCpus) {
  for_batches([](DType dtype, const Array& x, int) {
    const DType stats = statistics_of(dtype);
    const int64_t channels = x.shape()[1];
    const Array mean = vector_of(stats, channels, 2, 3, 1);
    const Array invstd = vector_of(stats, channels, 0.5, 2, 2);
    for (DType of_weight : {dtype, DType::kF32}) {
      expect_same(
          "batch_norm",
          {x, mean, invstd, vector_of(of_weight, channels, -1, 1, 3),
           vector_of(of_weight, channels, -1, 1, 4), empty(dtype, x.shape(), x.view.strides)},
          5, 16, [](const Views& v) {
            launch<kernels::BatchNormApply>(v[0].device, v[0], v[1], v[2], &v[3], &v[4], v[5]);
          });
    }
    expect_same("batch_norm without weights", {x, mean, invstd, empty(dtype, x.shape())}, 3, 16,
                [](const Views& v) {
                  launch<kernels::BatchNormApply>(v[0].device, v[0], v[1], v[2], nullptr, nullptr,
                                                  v[3]);
                });
  });
}

TEST(CudaNorms, BatchNormsGradientIsTheCpus) {
  for_batches([](DType dtype, const Array& x, int schedules) {
    const DType stats = statistics_of(dtype);
    const int64_t channels = x.shape()[1];
    const int64_t count = channels == 0 ? 0 : x.numel() / channels;
    const Array g = sample(dtype, x.shape(), -1, 1, 5);
    const Array mean = vector_of(stats, channels, 2, 3, 1);
    const Array invstd = vector_of(stats, channels, 0.5, 2, 2);
    expect_same(
        "batch_norm's sums",
        {g, x, mean, invstd, vector_of(stats, channels, 0, 1, 3),
         vector_of(stats, channels, 0, 1, 4)},
        4, 8,
        [](const Views& v) {
          launch<kernels::BatchNormBackwardReduce>(v[0].device, v[0], v[1], v[2], v[3], v[4], v[5]);
        },
        schedules, 8 * count);
    const int64_t all = 2 * count + 1;
    const std::vector<Array> arrays = {g,
                                       x,
                                       mean,
                                       invstd,
                                       vector_of(dtype, channels, -1, 1, 6),
                                       vector_of(stats, channels, -3, 3, 7),
                                       vector_of(stats, channels, -3, 3, 8),
                                       empty(dtype, x.shape(), x.view.strides)};
    for (bool has_weight : {false, true}) {
      expect_same("batch_norm's gradient", arrays, 7, 32, [=](const Views& v) {
        launch<kernels::BatchNormBackwardApply>(v[0].device, v[0], v[1], v[2], v[3],
                                                has_weight ? &v[4] : nullptr, v[5], v[6], all,
                                                v[7]);
      });
    }
  });
}

struct Rows {
  Shape shape;     // of x
  Shape of_row;    // of weight and bias
  int64_t number;  // of rows
};
const std::vector<Rows> kRows = {
    {{7}, {7}, 1},    {{3, 301}, {301}, 3}, {{3, 5, 7}, {5, 7}, 3}, {{40, 9}, {9}, 40},
    {{1, 1}, {1}, 1}, {{0, 3}, {3}, 0},     {{3, 0, 5}, {0, 5}, 3}, {{700, 4}, {4}, 700}};

template <class F>
void for_rows(const F& f) {
  for (DType dtype : kFloats) {
    for (const Rows& rows : kRows) {
      for (const Strides& strides : some_strides(rows.shape)) {
        f(dtype, rows, with_strides(sample(dtype, rows.shape, 1, 4), strides),
          dtype == DType::kF32 && numel(rows.shape) < 200 ? 20 : 1);
      }
    }
  }
}

TEST(CudaNorms, LayerNormIsTheCpus) {
  for_rows([](DType dtype, const Rows& rows, const Array& x, int schedules) {
    const DType stats = statistics_of(dtype);
    const std::vector<Array> arrays = {x,
                                       sample(dtype, rows.of_row, -1, 1, 1),
                                       sample(dtype, rows.of_row, -1, 1, 2),
                                       empty(dtype, rows.shape, x.view.strides),
                                       sample(stats, {rows.number}),
                                       sample(stats, {rows.number})};
    for (bool affine : {false, true}) {
      expect_same(
          "layer_norm", arrays, 3, 32,
          [=](const Views& v) {
            launch<kernels::LayerNorm>(v[0].device, v[0], affine ? &v[1] : nullptr,
                                       affine ? &v[2] : nullptr, 1e-5, v[3], v[4], v[5]);
          },
          schedules);
    }
  });
}

TEST(CudaNorms, LayerNormsGradientIsTheCpus) {
  for_rows([](DType dtype, const Rows& rows, const Array& x, int schedules) {
    const DType stats = statistics_of(dtype);
    const std::vector<Array> arrays = {sample(dtype, rows.shape, -1, 1, 3),
                                       x,
                                       sample(stats, {rows.number}, 2, 3, 4),
                                       sample(stats, {rows.number}, 0.5, 2, 5),
                                       sample(dtype, rows.of_row, -1, 1, 1),
                                       empty(dtype, rows.shape, x.view.strides),
                                       sample(dtype, rows.of_row),
                                       sample(dtype, rows.of_row)};
    for (int wanted = 1; wanted < 8; ++wanted) {
      // What is not wanted stays as it was.
      std::vector<Array> some = arrays;
      for (size_t k = 5; k < 8; ++k) {
        if ((wanted >> (k - 5) & 1) == 0) some[k] = sample(dtype, some[k].shape());
      }
      expect_same(
          "layer_norm's gradient", some, 5, 32,
          [=](const Views& v) {
            launch<kernels::LayerNormBackward>(
                v[0].device, v[0], v[1], v[2], v[3], (wanted & 2) != 0 ? &v[4] : nullptr,
                (wanted & 1) != 0 ? &v[5] : nullptr, (wanted & 2) != 0 ? &v[6] : nullptr,
                (wanted & 4) != 0 ? &v[7] : nullptr);
          },
          wanted == 7 ? schedules : 1, 8 * rows.number);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
