#include "lockstep/kernels/scan.h"

#include "arrays.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

// Sums along `axis` of (3, 5, 7), element by element, in double or, for integers, exactly.
std::vector<double> sums(const Array& x, size_t axis, bool reverse) {
  std::vector<double> out = x.values();
  const Shape& shape = x.shape();
  int64_t step = 1;
  for (size_t d = axis + 1; d < shape.size(); ++d) step *= shape[d];
  const auto place = [&](int64_t i) { return i / step % shape[axis]; };
  for (int64_t n = 0; n < x.numel(); ++n) {
    const int64_t i = reverse ? x.numel() - 1 - n : n;
    if (place(i) == (reverse ? shape[axis] - 1 : 0)) continue;
    out[static_cast<size_t>(i)] += out[static_cast<size_t>(reverse ? i + step : i - step)];
  }
  return out;
}

TEST(CumSum, EveryDtypeAxisDirectionAndMemoryOrder) {
  const Shape shape = {3, 5, 7};
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    const DType result = is_floating(dtype) ? dtype : DType::kI64;
    const Array values = sample(dtype, shape, is_floating(dtype) ? -1.5 : 0, 100);
    for (size_t axis = 0; axis < 3; ++axis) {
      for (bool reverse : {false, true}) {
        const std::vector<double> want = sums(values, axis, reverse);
        for (const Strides& from : some_strides(shape)) {
          const Array x = with_strides(values, from);
          const Array y = empty(result, shape, some_strides(shape)[1]);
          CumSum::cpu(x.view, y.view, static_cast<int64_t>(axis), reverse);
          for (int64_t i = 0; i < y.numel(); ++i) {
            ASSERT_TRUE(close(y.get(i), want[static_cast<size_t>(i)],
                              is_floating(dtype) ? epsilon(dtype) : 0))
                << name(dtype) << " " << i;
          }
        }
      }
    }
  }
}

TEST(CumSum, InPlaceOfOneAndOfNothing) {
  const Array x = filled(empty(DType::kF32, {5}), [](int64_t i) { return i + 1; });
  CumSum::cpu(x.view, x.view, 0, false);
  EXPECT_EQ(x.values(), (std::vector<double>{1, 3, 6, 10, 15}));
  for (int64_t axis : {0, 1}) {  // 7 lines, more than are scanned together
    const Array in = sample(DType::kF64, {7, 7});
    const Array want = empty(DType::kF64, {7, 7});
    CumSum::cpu(in.view, want.view, axis, true);
    CumSum::cpu(in.view, in.view, axis, true);
    EXPECT_EQ(in.values(), want.values());
  }
  const Array none = empty(DType::kF32, {3, 0});
  CumSum::cpu(none.view, none.view, 0, false);
  CumSum::cpu(none.view, none.view, 1, true);
}

TEST(CumSum, KeepsNanAndInfinity) {
  const double in[] = {1, kInf, 2, -kInf, 3};
  const Array x = filled(empty(DType::kF32, {5}), [&](int64_t i) { return in[i]; });
  const Array y = empty(DType::kF32, {5});
  CumSum::cpu(x.view, y.view, 0, false);
  const double want[] = {1, kInf, kInf, kNan, kNan};
  for (int64_t i = 0; i < 5; ++i) EXPECT_TRUE(close(y.get(i), want[i], 0)) << i;
}

// 2^24 + 1 is no float, so a running sum in f32 would stay at 2^24.
TEST(CumSum, DoesNotLoseSmallSummands) {
  const Array x = filled(empty(DType::kF32, {9}), [](int64_t i) { return i == 0 ? 0x1p24 : 1; });
  const Array y = empty(DType::kF32, {9});
  CumSum::cpu(x.view, y.view, 0, false);
  EXPECT_EQ(y.get(8), 0x1p24 + 8);
}

}  // namespace
}  // namespace lockstep::kernels
