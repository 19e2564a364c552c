#include "lockstep/kernels/batch_norm.h"

#include <gtest/gtest.h>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

int64_t plane_of(const Shape& shape) {
  int64_t plane = 1;
  for (size_t d = 2; d < shape.size(); ++d) plane *= shape[d];
  return plane;
}

int64_t channel_of(int64_t i, const Shape& shape) { return i / plane_of(shape) % shape[1]; }

DType statistics(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// (C) with a stride of 2.
Array vector(DType dtype, int64_t channels) { return empty(dtype, {channels}, {2}); }

Array sample_vector(DType dtype, int64_t channels, double low, double high, int64_t salt) {
  return filled(vector(dtype, channels),
                [=](int64_t i) { return noise(i + 31 * salt, low, high); });
}

struct Stats {
  std::vector<long double> mean;
  std::vector<long double> m2;
};

// In more digits than f64 has, so that f64 too is held to its own.
Stats plain_stats(const Array& x) {
  const auto channels = static_cast<size_t>(x.shape()[1]);
  Stats out{std::vector<long double>(channels), std::vector<long double>(channels)};
  const auto count = static_cast<long double>(x.numel() / x.shape()[1]);
  const auto channel = [&](int64_t i) { return static_cast<size_t>(channel_of(i, x.shape())); };
  for (int64_t i = 0; i < x.numel(); ++i) out.mean[channel(i)] += x.get(i) / count;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const long double d = x.get(i) - out.mean[channel(i)];
    out.m2[channel(i)] += d * d;
  }
  return out;
}

void expect_stats(const Array& x, double tolerance) {
  const DType dtype = statistics(x.view.dtype);
  const Array mean = vector(dtype, x.shape()[1]);
  const Array m2 = vector(dtype, x.shape()[1]);
  BatchNormStats::cpu(x.view, mean.view, m2.view);
  const Stats want = plain_stats(x);
  const double count = static_cast<double>(x.numel() / x.shape()[1]);
  for (int64_t c = 0; c < x.shape()[1]; ++c) {
    const auto k = static_cast<size_t>(c);
    const auto want_mean = static_cast<double>(want.mean[k]);
    const auto want_m2 = static_cast<double>(want.m2[k]);
    const double deviation = std::sqrt(want_m2 / count);
    EXPECT_TRUE(close(mean.get(c), want_mean, tolerance, tolerance * deviation)) << c;
    EXPECT_TRUE(close(m2.get(c), want_m2, 8 * tolerance, 1e-30)) << c;
  }
}

const Shape kShapes[] = {{5, 7},         {1, 3, 1},        {4, 1, 13},      {9, 17, 3, 5},
                         {2, 33, 9, 1},  {11, 3, 2, 3, 5}, {3, 1, 101, 67}, {4, 65, 13, 5},
                         {3, 5, 71, 73}, {301, 70},        {9001, 1}};

TEST(BatchNormStats, EveryShapeMemoryOrderAndDtype) {
  for (DType dtype : kFloats) {
    for (const Shape& shape : kShapes) {
      const Array x = sample(dtype, shape, -1, 3);
      for (const Strides& strides : some_strides(shape)) {
        SCOPED_TRACE(to_string(shape) + " by " + to_string(strides));
        // What 16-bit inputs are is exact: only the sums round.
        expect_stats(with_strides(x, strides), 4 * epsilon(statistics(dtype)));
      }
    }
  }
}

// The mean is ten thousand times the deviation, whose square a sum of squares would lose.
TEST(BatchNormStats, LargeMeansCostNoDigits) {
  for (const Shape& shape : {Shape{37, 5, 11, 13}, Shape{501, 9}}) {
    const Array x =
        filled(empty(DType::kF32, shape), [](int64_t i) { return 10000 + noise(i, -1, 1); });
    for (const Strides& strides : some_strides(shape)) {
      expect_stats(with_strides(x, strides), 2e-6);
    }
  }
}

// A block's first element is what the others are taken relative to; here it is far off.
TEST(BatchNormStats, AnOutlierInFrontCostsNoDigits) {
  const Array x = filled(empty(DType::kF32, {33, 4, 9, 9}),
                         [](int64_t i) { return i % 81 == 0 && i < 324 ? 3000 : noise(i, -1, 1); });
  for (const Strides& strides : some_strides(x.shape())) {
    expect_stats(with_strides(x, strides), 2e-6);
  }
}

TEST(BatchNormStats, NoElementsGiveZeros) {
  for (const Shape& shape : {Shape{0, 3, 4, 5}, Shape{2, 3, 0}}) {
    const Array x = empty(DType::kF32, shape);
    const Array mean = filled(vector(DType::kF32, 3), [](int64_t) { return 7; });
    const Array m2 = filled(vector(DType::kF32, 3), [](int64_t) { return 7; });
    BatchNormStats::cpu(x.view, mean.view, m2.view);
    EXPECT_EQ(mean.values(), std::vector<double>(3, 0));
    EXPECT_EQ(m2.values(), std::vector<double>(3, 0));
  }
}

TEST(BatchNormStats, ANanStaysInItsChannel) {
  const Array x = sample(DType::kF32, {6, 5, 3, 3});
  x.set(9 * 2 + 4, kNan);
  for (const Strides& strides : some_strides(x.shape())) {
    const Array mean = vector(DType::kF32, 5);
    const Array m2 = vector(DType::kF32, 5);
    BatchNormStats::cpu(with_strides(x, strides).view, mean.view, m2.view);
    for (int64_t c = 0; c < 5; ++c) {
      EXPECT_EQ(std::isnan(mean.get(c)), c == 2);
      EXPECT_EQ(std::isnan(m2.get(c)), c == 2);
    }
  }
}

TEST(BatchNormApply, EveryShapeMemoryOrderAndDtype) {
  for (DType dtype : kFloats) {
    for (const Shape& shape : kShapes) {
      const int64_t channels = shape[1];
      const Array a = sample(dtype, shape);
      const Array mean = sample_vector(statistics(dtype), channels, -1, 1, 1);
      const Array invstd = sample_vector(statistics(dtype), channels, 0.5, 2, 2);
      const Array weight = sample_vector(dtype, channels, -2, 2, 3);
      const Array bias = sample_vector(dtype, channels, -1, 1, 4);
      size_t turn = 0;
      const std::vector<Strides> orders = some_strides(shape);
      for (const Strides& strides : orders) {
        SCOPED_TRACE(to_string(shape) + " by " + to_string(strides));
        const bool affine = ++turn % 2 == 0;
        const Array x = with_strides(a, strides);
        const Array y = empty(dtype, shape, orders[turn % orders.size()]);
        BatchNormApply::cpu(x.view, mean.view, invstd.view, affine ? &weight.view : nullptr,
                            affine ? &bias.view : nullptr, y.view);
        for (int64_t i = 0; i < x.numel(); ++i) {
          const int64_t c = channel_of(i, shape);
          const double xhat = (x.get(i) - mean.get(c)) * invstd.get(c);
          const double want = affine ? xhat * weight.get(c) + bias.get(c) : xhat;
          ASSERT_TRUE(close(y.get(i), want, epsilon(dtype), 30 * epsilon(statistics(dtype)))) << i;
        }
      }
    }
  }
}

TEST(BatchNormBackward, EveryShapeMemoryOrderAndDtype) {
  for (DType dtype : kFloats) {
    for (const Shape& shape : kShapes) {
      const int64_t channels = shape[1];
      const DType wide = statistics(dtype);
      const double eps = epsilon(wide);
      const Array g_values = sample(dtype, shape, -1, 2, 5);
      const Array x_values = sample(dtype, shape, -1, 3, 6);
      const Array mean = sample_vector(wide, channels, -1, 1, 1);
      const Array invstd = sample_vector(wide, channels, 0.5, 2, 2);
      const Array weight = sample_vector(dtype, channels, -2, 2, 3);
      const std::vector<Strides> orders = some_strides(shape);
      for (size_t turn = 0; turn < orders.size(); ++turn) {
        SCOPED_TRACE(to_string(shape) + " by " + to_string(orders[turn]));
        const Array x = with_strides(x_values, orders[turn]);
        const Array g = with_strides(g_values, orders[turn % 2]);
        const Array sum_g = vector(wide, channels);
        const Array sum_g_xhat = vector(wide, channels);
        BatchNormBackwardReduce::cpu(g.view, x.view, mean.view, invstd.view, sum_g.view,
                                     sum_g_xhat.view);
        const auto xhat = [&](int64_t i) {
          const int64_t c = channel_of(i, shape);
          return (x.get(i) - mean.get(c)) * invstd.get(c);
        };
        std::vector<double> want_g(static_cast<size_t>(channels));
        std::vector<double> want_g_xhat(want_g.size());
        std::vector<double> magnitude(want_g.size());
        for (int64_t i = 0; i < x.numel(); ++i) {
          const auto c = static_cast<size_t>(channel_of(i, shape));
          want_g[c] += g.get(i);
          want_g_xhat[c] += g.get(i) * xhat(i);
          magnitude[c] += std::abs(g.get(i)) * (1 + std::abs(xhat(i)));
        }
        for (int64_t c = 0; c < channels; ++c) {
          const auto k = static_cast<size_t>(c);
          EXPECT_TRUE(close(sum_g.get(c), want_g[k], eps, 8 * eps * magnitude[k])) << c;
          EXPECT_TRUE(close(sum_g_xhat.get(c), want_g_xhat[k], eps, 8 * eps * magnitude[k])) << c;
        }

        const Array gx = empty(dtype, shape, orders[(turn + 1) % orders.size()]);
        const int64_t count = x.numel() / channels + 3;  // other ranks have some too
        BatchNormBackwardApply::cpu(g.view, x.view, mean.view, invstd.view,
                                    turn % 2 == 0 ? &weight.view : nullptr, sum_g.view,
                                    sum_g_xhat.view, count, gx.view);
        const auto n = static_cast<double>(count);
        for (int64_t i = 0; i < x.numel(); ++i) {
          const int64_t c = channel_of(i, shape);
          const double scale = invstd.get(c) * (turn % 2 == 0 ? weight.get(c) : 1);
          const double want =
              scale * (g.get(i) - sum_g.get(c) / n - xhat(i) * sum_g_xhat.get(c) / n);
          ASSERT_TRUE(close(gx.get(i), want, epsilon(dtype), 100 * eps)) << i;
        }
      }
    }
  }
}

TEST(BatchNorm, BitsDoNotDependOnThreads) {
  for (size_t order : {size_t{0}, size_t{2}}) {
    const Shape shape = {67, 19, 17, 13};
    const Strides strides = some_strides(shape)[order];
    const Array x = with_strides(sample(DType::kF32, shape), strides);
    const Array g = with_strides(sample(DType::kF32, shape, -1, 1, 3), strides);
    std::vector<std::vector<double>> results;
    for (int threads : {1, 2, 5}) {
      set_num_threads(threads);
      std::vector<Array> out;
      for (int k = 0; k < 4; ++k) out.push_back(vector(DType::kF32, 19));
      BatchNormStats::cpu(x.view, out[0].view, out[1].view);
      BatchNormBackwardReduce::cpu(g.view, x.view, out[0].view, out[1].view, out[2].view,
                                   out[3].view);
      results.emplace_back();
      for (const Array& a : out) {
        for (double v : a.values()) results.back().push_back(v);
      }
    }
    set_num_threads(0);
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

}  // namespace
}  // namespace lockstep::kernels
