// Pooling of kernels/cuda/ against the CPU's.
#include <gmock/gmock.h>

#include "expect_same.h"
#include "lockstep/kernels/pool.h"

namespace lockstep::testing {
namespace {

using kernels::Pool2dParams;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Case {
  Shape x;
  Pool2dParams params;
};

// Windows that touch, overlap, leave gaps, hang over the edge and are dilated.
const Case kCases[] = {
    {{3, 5, 8, 6}, {{2, 2}, {2, 2}, {0, 0}, {1, 1}, true}},
    {{2, 3, 7, 5}, {{2, 2}, {1, 3}, {0, 0}, {3, 2}, true}},
    {{2, 7, 13, 11}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}, true}},
    {{1, 4, 9, 12}, {{3, 5}, {1, 4}, {1, 2}, {2, 1}, false}},
    {{2, 1, 5, 7}, {{5, 7}, {1, 1}, {0, 0}, {1, 1}, true}},
    {{3, 2, 1, 9}, {{1, 4}, {1, 2}, {0, 2}, {1, 1}, false}},
    {{1, 9, 6, 6}, {{1, 1}, {2, 3}, {0, 0}, {1, 1}, true}},
    {{0, 3, 8, 8}, {{2, 2}, {2, 2}, {0, 0}, {1, 1}, true}},
};

Shape output_shape(const Shape& x, const Pool2dParams& p) {
  Shape y = x;
  for (size_t d : {0, 1}) {
    const int64_t reach = p.dilation[d] * (p.kernel[d] - 1) + 1;
    y[2 + d] = (x[2 + d] + 2 * p.padding[d] - reach) / p.stride[d] + 1;
  }
  return y;
}

template <class F>
void for_cases(const F& f) {
  for (DType dtype : kFloats) {
    for (const Case& c : kCases) {
      for (size_t k = 0; k < 4; ++k) f(dtype, c, k, dtype == DType::kF32 && k < 2 ? 10 : 1);
    }
  }
}

TEST(CudaPool, MaximaAndTheirPlacesAreTheCpus) {
  const double values[] = {0, 1, 1, kNan, -kInf, 2, kInf};
  for_cases([&](DType dtype, const Case& c, size_t k, int schedules) {
    const Shape out = output_shape(c.x, c.params);
    const Array unequal = sample(dtype, c.x);
    const Array equal = filled(empty(dtype, c.x), [&](int64_t i) {
      return values[static_cast<size_t>(noise(i, 0, 6.999))];
    });
    for (const Array* x : {&unequal, &equal}) {
      expect_same(
          "max_pool2d",
          {with_strides(*x, some_strides(c.x)[k]), empty(dtype, out, some_strides(out)[k]),
           empty(DType::kI32, out, some_strides(out)[(k + 1) % 4])},
          1, 0,
          [&](const Views& v) {
            launch<kernels::MaxPool2d>(v[0].device, v[0], v[1], v[2], c.params);
          },
          schedules);
    }
  });
}

// In f32 to the bit: the order of additions is the same.
TEST(CudaPool, GradientsGoToTheirPlacesAsOnTheCpu) {
  for_cases([](DType dtype, const Case& c, size_t k, int schedules) {
    const Shape out = output_shape(c.x, c.params);
    const Array maxima = empty(dtype, out);
    const Array places = empty(DType::kI32, out, some_strides(out)[k]);
    const Array x = sample(dtype, c.x);
    kernels::MaxPool2d::cpu(x.view, maxima.view, places.view, c.params);
    expect_same(
        "max_pool2d's gradient",
        {with_strides(sample(dtype, out, -1, 2, 3), some_strides(out)[(k + 1) % 4]), places,
         empty(dtype, c.x, some_strides(c.x)[k])},
        2, 0,
        [&](const Views& v) {
          launch<kernels::MaxPool2dBackward>(v[0].device, v[0], v[1], v[2], c.params);
        },
        schedules);
    expect_same(
        "max_pool2d's gather",
        {with_strides(x, some_strides(c.x)[k]), places,
         empty(dtype, out, some_strides(out)[(k + 1) % 4])},
        2, 0,
        [](const Views& v) { launch<kernels::MaxPool2dGather>(v[0].device, v[0], v[1], v[2]); },
        schedules);
  });
}

TEST(CudaPool, AveragesAndTheirGradientsAreTheCpus) {
  for_cases([](DType dtype, Case c, size_t k, int schedules) {
    c.params.dilation = {1, 1};
    const Shape out = output_shape(c.x, c.params);
    expect_same(
        "avg_pool2d",
        {with_strides(sample(dtype, c.x), some_strides(c.x)[k]),
         empty(dtype, out, some_strides(out)[(k + 1) % 4])},
        1, 0,
        [&](const Views& v) { launch<kernels::AvgPool2d>(v[0].device, v[0], v[1], c.params); },
        schedules);
    expect_same(
        "avg_pool2d's gradient",
        {with_strides(sample(dtype, out), some_strides(out)[k]),
         empty(dtype, c.x, some_strides(c.x)[(k + 1) % 4])},
        1, 0,
        [&](const Views& v) {
          launch<kernels::AvgPool2dBackward>(v[0].device, v[0], v[1], c.params);
        },
        schedules);
  });
}

TEST(CudaPool, PlacesOutsideThePlaneAreNamedOrPassedOver) {
  const Shape out = {2, 3, 3, 2};
  const Array x = moved(sample(DType::kF32, {2, 3, 6, 5}), kDevice);
  const Array g = moved(sample(DType::kF32, out), kDevice);
  for (double bad : {-1.0, 30.0}) {
    const Array places = moved(
        filled(empty(DType::kI32, out), [&](int64_t i) { return i == 17 ? bad : double(i % 30); }),
        kDevice);
    EXPECT_THAT(
        said([&] { launch<kernels::MaxPool2dGather>(kDevice, x.view, places.view, g.view); }),
        AllOf(HasSubstr("max_pool2d_gather"), HasSubstr("6 by 5"),
              HasSubstr("got " + std::to_string(static_cast<int>(bad)))));
    launch<kernels::MaxPool2dBackward>(kDevice, g.view, places.view, x.view, Pool2dParams{});
    EXPECT_EQ(simt::take_report(), "");
  }
}

TEST(CudaPool, RefusesWindowsThatSeeOnlyPadding) {
  const Array x = moved(sample(DType::kF32, {1, 1, 2, 8}), kDevice);
  const Pool2dParams params = {{2, 2}, {1, 2}, {1, 0}, {3, 1}, true};
  const Shape out = output_shape({1, 1, 2, 8}, params);
  const Array y = moved(empty(DType::kF32, out), kDevice);
  const Array places = moved(empty(DType::kI32, out), kDevice);
  EXPECT_THAT(
      said([&] { launch<kernels::MaxPool2d>(kDevice, x.view, y.view, places.view, params); }),
      HasSubstr("more than padding"));
}

}  // namespace
}  // namespace lockstep::testing
