// Resizing of kernels/cuda/ against the CPU's.
#include "lockstep/kernels/resize.h"

#include "expect_same.h"

namespace lockstep::testing {
namespace {

using kernels::Interpolation;

// Of `from` places: more and fewer than there were, with places that nothing has a share in.
Interpolation interpolation(int64_t from, int64_t to) {
  Interpolation out;
  for (int64_t i = 0; i < to; ++i) {
    const double place = static_cast<double>(i * (from - 1)) / static_cast<double>(to);
    out.low.push_back(static_cast<int64_t>(place));
    out.high.push_back(std::min(out.low.back() + 1, from - 1));
    out.weight.push_back(place - static_cast<double>(out.low.back()));
  }
  return out;
}

TEST(CudaResize, EveryAxisMemoryOrderAndDtype) {
  for (DType dtype : kFloats) {
    for (size_t axis : {0, 1, 2}) {
      for (const int64_t to : {int64_t{3}, int64_t{29}}) {
        const Shape x = {11, 11, 11};
        Shape y = x;
        y[axis] = to;
        const Interpolation how = interpolation(x[axis], to);
        const auto d = static_cast<int64_t>(axis);
        for (size_t k = 0; k < 4; ++k) {
          const int schedules = dtype == DType::kF32 && k < 2 ? 5 : 1;
          expect_same(
              "interpolate",
              {with_strides(sample(dtype, x), some_strides(x)[k]),
               empty(dtype, y, some_strides(y)[(k + 1) % 4])},
              1, 4,
              [&](const Views& v) {
                launch<kernels::Interpolate>(v[0].device, v[0], v[1], d, how);
              },
              schedules, 2);
          expect_same(
              "interpolate's gradient",
              {with_strides(sample(dtype, y), some_strides(y)[k]),
               empty(dtype, x, some_strides(x)[(k + 1) % 4])},
              1, 4,
              [&](const Views& v) {
                launch<kernels::InterpolateBackward>(v[0].device, v[0], v[1], d, how);
              },
              schedules, 16);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
