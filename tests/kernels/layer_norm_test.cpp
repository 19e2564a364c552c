#include "lockstep/kernels/layer_norm.h"

#include <gtest/gtest.h>

#include <string>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

DType lane(DType dtype) { return dtype == DType::kF64 ? dtype : DType::kF32; }

// What LayerNorm and its backward give for rows of `size` elements, in double from the definition.
struct Want {
  std::vector<double> y, gx, gweight, gbias;
};

Want want(const Array& x, const Array& g, const Array* weight, const Array* bias, int64_t size,
          double eps) {
  Want out;
  out.gweight.resize(static_cast<size_t>(size));
  out.gbias.resize(static_cast<size_t>(size));
  const auto n = static_cast<double>(size);
  for (int64_t at = 0; at < x.numel(); at += size) {
    double mean = 0, var = 0, sum = 0, dot = 0;
    for (int64_t i = 0; i < size; ++i) mean += x.get(at + i) / n;
    for (int64_t i = 0; i < size; ++i) var += (x.get(at + i) - mean) * (x.get(at + i) - mean) / n;
    const double rstd = 1 / std::sqrt(var + eps);
    const auto xhat = [&](int64_t i) { return (x.get(at + i) - mean) * rstd; };
    const auto slope = [&](int64_t i) { return g.get(at + i) * (weight ? weight->get(i) : 1); };
    for (int64_t i = 0; i < size; ++i) {
      sum += slope(i) / n;
      dot += slope(i) * xhat(i) / n;
    }
    for (int64_t i = 0; i < size; ++i) {
      out.y.push_back(xhat(i) * (weight ? weight->get(i) : 1) + (bias ? bias->get(i) : 0));
      out.gx.push_back(rstd * (slope(i) - sum - xhat(i) * dot));
      out.gweight[static_cast<size_t>(i)] += g.get(at + i) * xhat(i);
      out.gbias[static_cast<size_t>(i)] += g.get(at + i);
    }
  }
  return out;
}

void expect_close(const Array& got, const std::vector<double>& wanted, double factor,
                  const std::string& what) {
  const DType dtype = got.view.dtype;
  for (int64_t i = 0; i < got.numel(); ++i) {
    ASSERT_TRUE(close(got.get(i), wanted[static_cast<size_t>(i)], 2 * epsilon(dtype),
                      factor * epsilon(lane(dtype))))
        << what << " " << i;
  }
}

TEST(LayerNorm, EveryMemoryOrderAndDtypeForwardAndBackward) {
  for (DType dtype : kFloats) {
    for (const Shape& shape : {Shape{7, 10}, Shape{3, 5, 67}, Shape{2, 4099}, Shape{131, 1}}) {
      const int64_t size = shape.back();
      const int64_t rows = numel(shape) / size;
      const Array x_values = sample(dtype, shape, -2, 3, 1);
      const Array g_values = sample(dtype, shape, -1, 1, 2);
      const Array weight = with_strides(sample(dtype, {size}, 0.5, 1.5, 3), {2});
      const Array bias = sample(dtype, {size}, -1, 1, 4);
      const std::vector<Strides> orders = some_strides(shape);
      for (size_t k = 0; k < orders.size(); ++k) {
        SCOPED_TRACE(std::string(name(dtype)) + to_string(shape) + " by " + to_string(orders[k]));
        const bool affine = k != 1;
        const Array x = with_strides(x_values, orders[k]);
        const Array g = with_strides(g_values, orders[(k + 2) % orders.size()]);
        const Array y = empty(dtype, shape, orders[(k + 1) % orders.size()]);
        const Array gx = empty(dtype, shape, orders[(k + 3) % orders.size()]);
        const Array mean = empty(lane(dtype), {rows});
        const Array rstd = empty(lane(dtype), {rows});
        const Array gweight = empty(dtype, {size}, {3});
        const Array gbias = empty(dtype, {size});
        LayerNorm::cpu(x.view, affine ? &weight.view : nullptr, affine ? &bias.view : nullptr, 0.1,
                       y.view, mean.view, rstd.view);
        LayerNormBackward::cpu(g.view, x.view, mean.view, rstd.view,
                               affine ? &weight.view : nullptr, &gx.view, &gweight.view,
                               &gbias.view);
        const Want w = want(x, g, affine ? &weight : nullptr, affine ? &bias : nullptr, size, 0.1);
        // Numbers up to 4, and sums of them over a row or over all rows.
        expect_close(y, w.y, 32, "y");
        expect_close(gx, w.gx, 64, "gx");
        expect_close(gweight, w.gweight, 8 * static_cast<double>(8 + rows), "gweight");
        expect_close(gbias, w.gbias, 8 * static_cast<double>(8 + rows), "gbias");
      }
    }
  }
}

TEST(LayerNorm, GivesOnlyTheGradientsThatAreWanted) {
  const Array x = sample(DType::kF64, {5, 7}, -2, 2, 1);
  const Array g = sample(DType::kF64, {5, 7}, -2, 2, 2);
  const Array y = empty(DType::kF64, {5, 7});
  const Array mean = empty(DType::kF64, {5});
  const Array rstd = empty(DType::kF64, {5});
  LayerNorm::cpu(x.view, nullptr, nullptr, 1e-5, y.view, mean.view, rstd.view);
  const Want w = want(x, g, nullptr, nullptr, 7, 1e-5);
  const Array gx = empty(DType::kF64, {5, 7});
  LayerNormBackward::cpu(g.view, x.view, mean.view, rstd.view, nullptr, &gx.view, nullptr, nullptr);
  expect_close(gx, w.gx, 32, "gx");
  const Array gbias = empty(DType::kF64, {7});
  LayerNormBackward::cpu(g.view, x.view, mean.view, rstd.view, nullptr, nullptr, nullptr,
                         &gbias.view);
  expect_close(gbias, w.gbias, 32, "gbias");
}

TEST(LayerNorm, KeepsItsDigitsFarFromZero) {
  const Array x =
      filled(empty(DType::kF32, {1, 257}), [](int64_t i) { return 4096 + noise(i, -1, 1); });
  const Array y = empty(DType::kF32, {1, 257});
  const Array mean = empty(DType::kF32, {1});
  const Array rstd = empty(DType::kF32, {1});
  LayerNorm::cpu(x.view, nullptr, nullptr, 0, y.view, mean.view, rstd.view);
  const Want w = want(x, x, nullptr, nullptr, 257, 0);
  // The mean is rounded to 2^-11 at 4096, so every y is off by up to that times rstd.
  for (int64_t i = 0; i < 257; ++i) EXPECT_NEAR(y.get(i), w.y[static_cast<size_t>(i)], 2e-3);
}

TEST(LayerNorm, NothingIsNoWorkAndHasGradientsOfZero) {
  const Array x = empty(DType::kF32, {0, 5});
  const Array rows = empty(DType::kF32, {0});
  LayerNorm::cpu(x.view, nullptr, nullptr, 1e-5, x.view, rows.view, rows.view);
  const Array gweight = filled(empty(DType::kF32, {5}), [](int64_t) { return 7; });
  LayerNormBackward::cpu(x.view, x.view, rows.view, rows.view, nullptr, &x.view, &gweight.view,
                         nullptr);
  EXPECT_EQ(gweight.values(), std::vector<double>(5, 0));
}

TEST(LayerNorm, SeveralThreadsGiveTheSame) {
  const Array x = sample(DType::kF32, {1201, 91});
  const Array g = sample(DType::kF32, {1201, 91}, -1, 1, 1);
  const Array y = empty(DType::kF32, {1201, 91});
  const Array mean = empty(DType::kF32, {1201});
  const Array rstd = empty(DType::kF32, {1201});
  const Array gweight = empty(DType::kF32, {91});
  const Array gbias = empty(DType::kF32, {91});
  std::vector<std::vector<double>> results;
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    LayerNorm::cpu(x.view, nullptr, nullptr, 1e-5, y.view, mean.view, rstd.view);
    LayerNormBackward::cpu(g.view, x.view, mean.view, rstd.view, nullptr, &y.view, &gweight.view,
                           &gbias.view);
    results.push_back(y.values());
    results.push_back(gweight.values());
  }
  set_num_threads(0);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[1], results[3]);
}

}  // namespace
}  // namespace lockstep::kernels
