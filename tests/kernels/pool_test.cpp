#include "lockstep/kernels/pool.h"

#include <gtest/gtest.h>

#include <string>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

Pool2dParams window(std::array<int64_t, 2> kernel, std::array<int64_t, 2> stride,
                    std::array<int64_t, 2> padding = {0, 0},
                    std::array<int64_t, 2> dilation = {1, 1}) {
  return {kernel, stride, padding, dilation, true};
}

struct Case {
  Shape x;
  Pool2dParams params;
};

const Case kCases[] = {
    {{3, 5, 8, 6}, window({2, 2}, {2, 2})},
    {{2, 19, 9, 11}, window({2, 2}, {2, 2})},
    {{2, 3, 7, 5}, window({2, 2}, {1, 3}, {0, 0}, {3, 2})},
    {{2, 17, 13, 11}, window({3, 3}, {2, 2}, {1, 1})},
    {{1, 4, 9, 12}, window({3, 5}, {1, 4}, {1, 2}, {2, 1})},
    {{2, 1, 5, 7}, window({5, 7}, {1, 1})},
    {{3, 2, 1, 9}, window({1, 4}, {1, 2}, {0, 2})},
    {{1, 35, 6, 6}, window({1, 1}, {2, 3})},
};

Shape output_shape(const Shape& x, const Pool2dParams& p, bool dilated) {
  Shape y = x;
  for (size_t d : {0, 1}) {
    const int64_t reach = (dilated ? p.dilation[d] : 1) * (p.kernel[d] - 1) + 1;
    y[2 + d] = (x[2 + d] + 2 * p.padding[d] - reach) / p.stride[d] + 1;
  }
  return y;
}

// Calls f(x, place) for the elements that output `y` sees: their row-major number in x, and their
// place in the plane.
template <class F>
void for_each_seen(const Shape& x, const Shape& y, int64_t output, const Pool2dParams& p,
                   bool dilated, const F& f) {
  const int64_t ow = output % y[3];
  const int64_t oh = output / y[3] % y[2];
  const int64_t plane = output / y[3] / y[2];
  for (int64_t kh = 0; kh < p.kernel[0]; ++kh) {
    for (int64_t kw = 0; kw < p.kernel[1]; ++kw) {
      const int64_t h = oh * p.stride[0] - p.padding[0] + kh * (dilated ? p.dilation[0] : 1);
      const int64_t w = ow * p.stride[1] - p.padding[1] + kw * (dilated ? p.dilation[1] : 1);
      if (h < 0 || h >= x[2] || w < 0 || w >= x[3]) continue;
      f(plane * x[2] * x[3] + h * x[3] + w, h * x[3] + w);
    }
  }
}

void expect_maxima(const Array& x, const Pool2dParams& params, const Strides& y_strides) {
  const Shape shape = output_shape(x.shape(), params, true);
  const Array y = empty(x.view.dtype, shape, y_strides);
  const Array places = empty(DType::kI32, shape, y_strides);
  MaxPool2d::cpu(x.view, y.view, places.view, params);
  for (int64_t o = 0; o < y.numel(); ++o) {
    double best = 0;
    int64_t best_place = -1;
    for_each_seen(x.shape(), shape, o, params, true, [&](int64_t i, int64_t place) {
      const double v = x.get(i);
      if (best_place < 0 || v > best || (std::isnan(v) && !std::isnan(best))) {
        best = v;
        best_place = place;
      }
    });
    ASSERT_TRUE(close(y.get(o), best, 0)) << o;
    ASSERT_EQ(places.get(o), static_cast<double>(best_place)) << o;
  }
}

TEST(MaxPool2d, EveryWindowMemoryOrderAndDtype) {
  for (DType dtype : kFloats) {
    for (const Case& c : kCases) {
      const Array x = sample(dtype, c.x);
      const std::vector<Strides> orders = some_strides(c.x);
      const std::vector<Strides> y_orders = some_strides(output_shape(c.x, c.params, true));
      for (size_t k = 0; k < orders.size(); ++k) {
        SCOPED_TRACE(to_string(c.x) + " by " + to_string(orders[k]));
        expect_maxima(with_strides(x, orders[k]), c.params, y_orders[k]);
        expect_maxima(with_strides(x, orders[k]), c.params, y_orders[(k + 1) % orders.size()]);
      }
    }
  }
}

TEST(MaxPool2d, TakesTheFirstOfEqualsAndTheFirstNan) {
  const double values[] = {0, 1, 1, kNan, -kInf, 2, kInf};
  for (DType dtype : kFloats) {
    for (const Case& c : kCases) {
      const Array x = filled(empty(dtype, c.x), [&](int64_t i) {
        return values[static_cast<size_t>(noise(i, 0, 6.999))];
      });
      for (size_t k : {0, 2}) {
        expect_maxima(with_strides(x, some_strides(c.x)[k]), c.params,
                      some_strides(output_shape(c.x, c.params, true))[k]);
      }
    }
  }
  for (double value : {-kInf, kNan, 3.0}) {
    const Array x = filled(empty(DType::kF32, {2, 16, 4, 6}), [&](int64_t) { return value; });
    expect_maxima(x, {}, contiguous_strides({2, 16, 2, 3}));
  }
}

TEST(MaxPool2d, RefusesWindowsThatSeeOnlyPadding) {
  const Array x = sample(DType::kF32, {1, 1, 2, 8});
  const Array y = empty(DType::kF32, {1, 1, 1, 4});
  const Array places = empty(DType::kI32, {1, 1, 1, 4});
  try {
    MaxPool2d::cpu(x.view, y.view, places.view, window({2, 2}, {1, 2}, {1, 0}, {3, 1}));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find("dilation 3"), std::string::npos) << e.what();
  }
}

TEST(MaxPool2d, RefusesPlanesThatPlacesCannotCount) {
  View x{nullptr, DType::kF32, kCpu, {0, 1, 1 << 16, 1 << 15}, {}};
  x.strides = contiguous_strides(x.shape);
  const Array y = empty(DType::kF32, {0, 1, 1 << 15, 1 << 14});
  EXPECT_THROW(MaxPool2d::cpu(x, y.view, y.view, {}), Error);
}

TEST(MaxPool2dBackward, AddsEachGradientAtItsPlace) {
  for (DType dtype : kFloats) {
    for (const Case& c : kCases) {
      const Shape shape = output_shape(c.x, c.params, true);
      const Array x = sample(dtype, c.x);
      const Array g = sample(dtype, shape, -1, 2, 3);
      const std::vector<Strides> orders = some_strides(c.x);
      const std::vector<Strides> y_orders = some_strides(shape);
      for (size_t k = 0; k < orders.size(); ++k) {
        const Array y = empty(dtype, shape);
        const Array places = empty(DType::kI32, shape, y_orders[k]);
        MaxPool2d::cpu(x.view, y.view, places.view, c.params);
        std::vector<double> want(static_cast<size_t>(x.numel()));
        for (int64_t o = 0; o < y.numel(); ++o) {
          const int64_t plane = o / shape[2] / shape[3];
          const auto place = static_cast<int64_t>(places.get(o));
          want[static_cast<size_t>(plane * c.x[2] * c.x[3] + place)] += g.get(o);
        }
        const Array gx = empty(dtype, c.x, orders[(k + 1) % orders.size()]);
        MaxPool2dBackward::cpu(with_strides(g, y_orders[k % 2]).view, places.view, gx.view,
                               c.params);
        for (int64_t i = 0; i < x.numel(); ++i) {
          ASSERT_TRUE(close(gx.get(i), want[static_cast<size_t>(i)], 16 * epsilon(dtype),
                            16 * epsilon(dtype)))
              << i;
        }
      }
    }
  }
}

TEST(MaxPool2dGather, PicksWhatStandsAtThePlaces) {
  for (DType dtype : kFloats) {
    for (const Case& c : kCases) {
      const Shape shape = output_shape(c.x, c.params, true);
      const Array x = sample(dtype, c.x);
      const std::vector<Strides> orders = some_strides(c.x);
      const std::vector<Strides> y_orders = some_strides(shape);
      for (size_t k = 0; k < orders.size(); ++k) {
        const Array maxima = empty(dtype, shape);
        const Array places = empty(DType::kI32, shape, y_orders[k]);
        MaxPool2d::cpu(x.view, maxima.view, places.view, c.params);
        const Array y = empty(dtype, shape, y_orders[(k + 1) % y_orders.size()]);
        MaxPool2dGather::cpu(with_strides(x, orders[k]).view, places.view, y.view);
        EXPECT_EQ(y.values(), maxima.values());
      }
    }
  }
}

TEST(MaxPool2dPlaces, OutsideThePlaneIsAnErrorThatNamesThem) {
  for (double bad : {-1.0, 30.0}) {
    const Array g = sample(DType::kF32, {2, 3, 3, 2});
    const Array gx = empty(DType::kF32, {2, 3, 6, 5});
    const Array places = filled(empty(DType::kI32, {2, 3, 3, 2}), [&](int64_t i) {
      return i == 17 ? bad : static_cast<double>(i % 30);
    });
    for (bool gathers : {false, true}) {
      try {
        gathers ? MaxPool2dGather::cpu(gx.view, places.view, g.view)
                : MaxPool2dBackward::cpu(g.view, places.view, gx.view, {});
        FAIL();
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
        const std::string want = "got " + std::to_string(static_cast<int>(bad));
        EXPECT_NE(std::string(e.what()).find(want), std::string::npos) << e.what();
      }
    }
    places.set(17, 29);
    MaxPool2dBackward::cpu(g.view, places.view, gx.view, {});
  }
}

TEST(AvgPool2d, ForwardAndBackwardForEveryWindowMemoryOrderAndDtype) {
  for (DType dtype : kFloats) {
    for (Case c : kCases) {
      c.params.count_include_pad = c.x[1] % 2 == 0;
      const Shape shape = output_shape(c.x, c.params, false);
      const Array x = sample(dtype, c.x);
      const Array g = sample(dtype, shape, -1, 2, 3);
      std::vector<double> mean(static_cast<size_t>(g.numel()));
      std::vector<double> spread(static_cast<size_t>(x.numel()));
      for (int64_t o = 0; o < g.numel(); ++o) {
        double sum = 0;
        double count = 0;
        for_each_seen(c.x, shape, o, c.params, false, [&](int64_t i, int64_t) {
          sum += x.get(i);
          ++count;
        });
        if (c.params.count_include_pad) {
          count = static_cast<double>(c.params.kernel[0] * c.params.kernel[1]);
        }
        mean[static_cast<size_t>(o)] = sum / count;
        for_each_seen(c.x, shape, o, c.params, false, [&](int64_t i, int64_t) {
          spread[static_cast<size_t>(i)] += g.get(o) / count;
        });
      }
      const std::vector<Strides> orders = some_strides(c.x);
      const std::vector<Strides> y_orders = some_strides(shape);
      for (size_t k = 0; k < orders.size(); ++k) {
        SCOPED_TRACE(to_string(c.x) + " by " + to_string(orders[k]));
        const size_t other = (k + 1) % orders.size();
        const Array y = empty(dtype, shape, y_orders[k]);
        AvgPool2d::cpu(with_strides(x, orders[k]).view, y.view, c.params);
        const double eps = 16 * epsilon(dtype);
        for (int64_t o = 0; o < y.numel(); ++o) {
          ASSERT_TRUE(close(y.get(o), mean[static_cast<size_t>(o)], eps, eps)) << o;
        }
        const Array gx = empty(dtype, c.x, orders[other]);
        AvgPool2dBackward::cpu(with_strides(g, y_orders[k]).view, gx.view, c.params);
        for (int64_t i = 0; i < gx.numel(); ++i) {
          ASSERT_TRUE(close(gx.get(i), spread[static_cast<size_t>(i)], eps, eps)) << i;
        }
      }
    }
  }
}

TEST(Pool2d, SeveralThreadsGiveTheSame) {
  const Shape shape = {37, 24, 14, 10};
  const Array x = with_strides(sample(DType::kF32, shape), channels_last_strides(shape));
  const Shape out = {37, 24, 7, 5};
  const Array y = empty(DType::kF32, out, channels_last_strides(out));
  const Array mean = empty(DType::kF32, out, channels_last_strides(out));
  const Array places = empty(DType::kI32, out, channels_last_strides(out));
  const Array gx = empty(DType::kF32, shape, channels_last_strides(shape));
  std::vector<std::vector<double>> results;
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    MaxPool2d::cpu(x.view, y.view, places.view, {});
    MaxPool2dBackward::cpu(y.view, places.view, gx.view, {});
    AvgPool2d::cpu(x.view, mean.view, {});
    results.push_back(y.values());
    for (const Array* a : {&places, &gx, &mean}) {
      for (double v : a->values()) results.back().push_back(v);
    }
  }
  set_num_threads(0);
  EXPECT_EQ(results[0], results[1]);
}

TEST(Pool2d, NoSamplesAreNoWork) {
  const Array x = empty(DType::kF32, {0, 3, 8, 8});
  const Array y = empty(DType::kF32, {0, 3, 4, 4});
  const Array places = empty(DType::kI32, {0, 3, 4, 4});
  MaxPool2d::cpu(x.view, y.view, places.view, {});
  MaxPool2dBackward::cpu(y.view, places.view, x.view, {});
  AvgPool2d::cpu(x.view, y.view, {});
  AvgPool2dBackward::cpu(y.view, x.view, {});
}

}  // namespace
}  // namespace lockstep::kernels
