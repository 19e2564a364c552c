#include "lockstep/kernels/conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

struct Setting {
  Shape x;       // (N, C, H, W)
  Shape weight;  // (O, C / groups, kh, kw)
  Conv2dParams params;
};

const Setting kSettings[] = {
    {{2, 3, 7, 9}, {5, 3, 3, 3}, {}},
    {{1, 1, 8, 8}, {4, 1, 5, 5}, {{1, 1}, {2, 2}, {1, 1}, 1}},
    {{3, 17, 6, 5}, {19, 17, 1, 1}, {}},
    {{2, 4, 11, 8}, {6, 4, 3, 2}, {{2, 3}, {1, 0}, {1, 1}, 1}},
    {{2, 4, 11, 13}, {6, 4, 3, 3}, {{1, 2}, {2, 1}, {2, 3}, 1}},
    {{2, 6, 7, 7}, {9, 2, 3, 3}, {{1, 1}, {1, 1}, {1, 1}, 3}},
    {{2, 5, 7, 7}, {5, 1, 3, 3}, {{2, 2}, {1, 1}, {1, 1}, 5}},
    {{1, 32, 9, 9}, {64, 32, 3, 3}, {{1, 1}, {1, 1}, {1, 1}, 1}},
    {{2, 8, 7, 5}, {16, 8, 3, 2}, {{2, 1}, {1, 0}, {1, 1}, 1}},
    {{3, 24, 6, 11}, {8, 24, 2, 3}, {{1, 2}, {1, 2}, {2, 1}, 1}},
    {{2, 3, 3, 3}, {2, 3, 3, 3}, {}},
    {{2, 2, 1, 1}, {3, 2, 3, 3}, {{1, 1}, {1, 1}, {1, 1}, 1}},
};

Shape output_shape(const Setting& s) {
  const auto size = [&](size_t d) {
    return (s.x[2 + d] + 2 * s.params.padding[d] - s.params.dilation[d] * (s.weight[2 + d] - 1) -
            1) /
               s.params.stride[d] +
           1;
  };
  return {s.x[0], s.weight[0], size(0), size(1)};
}

int64_t at(const Shape& shape, int64_t a, int64_t b, int64_t c, int64_t d) {
  return ((a * shape[1] + b) * shape[2] + c) * shape[3] + d;
}

// Calls f(place in x, place in weight, place in y) for every product of the definition.
template <class F>
void for_each_product(const Setting& s, const F& f) {
  const Shape y = output_shape(s);
  const int64_t per_group = s.weight[0] / s.params.groups;
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t o = 0; o < y[1]; ++o) {
      for (int64_t i = 0; i < y[2]; ++i) {
        for (int64_t j = 0; j < y[3]; ++j) {
          for (int64_t c = 0; c < s.weight[1]; ++c) {
            for (int64_t r = 0; r < s.weight[2]; ++r) {
              for (int64_t q = 0; q < s.weight[3]; ++q) {
                const int64_t h =
                    i * s.params.stride[0] - s.params.padding[0] + r * s.params.dilation[0];
                const int64_t w =
                    j * s.params.stride[1] - s.params.padding[1] + q * s.params.dilation[1];
                if (h < 0 || h >= s.x[2] || w < 0 || w >= s.x[3]) continue;
                f(at(s.x, n, o / per_group * s.weight[1] + c, h, w), at(s.weight, o, c, r, q),
                  at(y, n, o, i, j));
              }
            }
          }
        }
      }
    }
  }
}

// Sums of products, and of their sizes, from which errors may grow.
struct Sums {
  explicit Sums(int64_t count) : value(static_cast<size_t>(count)), size(value) {}
  void add(int64_t place, double product) {
    value[static_cast<size_t>(place)] += product;
    size[static_cast<size_t>(place)] += std::abs(product);
  }
  void expect(const Array& got) const {
    const double bound = 8 * epsilon(got.view.dtype);
    for (int64_t i = 0; i < got.numel(); ++i) {
      const auto k = static_cast<size_t>(i);
      ASSERT_TRUE(close(got.get(i), value[k], bound, bound * size[k])) << i;
    }
  }
  std::vector<double> value;
  std::vector<double> size;
};

void check(const Setting& s, DType dtype, size_t order) {
  const Shape y_shape = output_shape(s);
  const auto lay = [&](const Array& x) { return with_strides(x, some_strides(x.shape())[order]); };
  const Array x = lay(sample(dtype, s.x));
  const Array weight = lay(sample(dtype, s.weight, -1, 1, 1));
  const Array bias = sample(dtype, {s.weight[0]}, -1, 1, 2);
  const Array g = lay(sample(dtype, y_shape, -1, 1, 3));
  Sums y_sums(g.numel());
  Sums x_sums(x.numel());
  Sums weight_sums(weight.numel());
  for_each_product(s, [&](int64_t xi, int64_t wi, int64_t yi) {
    y_sums.add(yi, x.get(xi) * weight.get(wi));
    x_sums.add(xi, g.get(yi) * weight.get(wi));
    weight_sums.add(wi, g.get(yi) * x.get(xi));
  });
  const auto result = [&](const Shape& shape) {
    return filled(empty(dtype, shape, some_strides(shape)[order]), [](int64_t) { return kNan; });
  };
  const Array y = result(y_shape);
  Conv2d::cpu(x.view, weight.view, nullptr, y.view, s.params);
  y_sums.expect(y);
  const int64_t plane = y_shape[2] * y_shape[3];
  for (int64_t i = 0; i < y.numel(); ++i) y_sums.add(i, bias.get(i / plane % y_shape[1]));
  Conv2d::cpu(x.view, weight.view, &bias.view, y.view, s.params);
  y_sums.expect(y);
  const Array gx = result(s.x);
  Conv2dInputGrad::cpu(g.view, weight.view, gx.view, s.params);
  x_sums.expect(gx);
  const Array gweight = result(s.weight);
  Conv2dWeightGrad::cpu(g.view, x.view, gweight.view, s.params);
  weight_sums.expect(gweight);
}

TEST(Conv2d, ValuesAndGradientsAreTheDefinitions) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    for (size_t s = 0; s < std::size(kSettings); ++s) {
      for (size_t order = 0; order < 4; ++order) {  // row-major, reversed, channels-last, gaps
        SCOPED_TRACE(::testing::Message() << name(dtype) << " setting " << s << " order " << order);
        check(kSettings[s], dtype, order);
      }
    }
  }
}

TEST(Conv2d, EmptyBatchesAndEmptySums) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const Array x = empty(dtype, {0, 2, 5, 5});
    const Array weight = sample(dtype, {3, 2, 3, 3});
    const Array y = empty(dtype, {0, 3, 3, 3});
    Conv2d::cpu(x.view, weight.view, nullptr, y.view, {});
    Conv2dInputGrad::cpu(y.view, weight.view, x.view, {});
    const Array gweight = filled(empty(dtype, {3, 2, 3, 3}), [](int64_t) { return kNan; });
    Conv2dWeightGrad::cpu(y.view, x.view, gweight.view, {});
    for (double v : gweight.values()) EXPECT_EQ(v, 0);

    const Array no_channels = empty(dtype, {2, 0, 5, 5});
    const Array no_weight = empty(dtype, {3, 0, 3, 3});
    const Array bias = sample(dtype, {3});
    const Array out = empty(dtype, {2, 3, 3, 3});
    Conv2d::cpu(no_channels.view, no_weight.view, &bias.view, out.view, {});
    for (int64_t i = 0; i < out.numel(); ++i) EXPECT_EQ(out.get(i), bias.get(i / 9 % 3));
  }
}

TEST(Conv2d, OtherDtypesAreAnErrorThatNamesThem) {
  const Array x = sample(DType::kF16, {1, 1, 3, 3});
  const Array y = empty(DType::kF16, {1, 1, 1, 1});
  try {
    Conv2d::cpu(x.view, x.view, nullptr, y.view, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "[conv2d] want f32 or f64, got f16");
  }
}

// Ranks may be threads of one process, all convolving at once.
TEST(Conv2d, ThreadsDoNotDisturbEachOther) {
  for (int threads : {1, 2}) {
    set_num_threads(threads);
    std::vector<std::thread> ranks;
    for (size_t rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([rank] {
        for (size_t s = 0; s < 3; ++s) check(kSettings[s + rank], DType::kF32, 2);
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  set_num_threads(0);
}

}  // namespace
}  // namespace lockstep::kernels
