// Sums of squares over lists of tensors, and changes of all of their elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "arrays.h"
#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

TEST(L2NormSquared, SumsAllViewsInDouble) {
  std::vector<Array> arrays;
  std::vector<View> views;
  long double want = 0;
  for (DType dtype : kFloats) {
    for (const Shape& shape :
         {Shape{7, 13}, Shape{2, 3, 4, 5}, Shape{0, 2}, Shape{}, Shape{40001}}) {
      const Array values = sample(dtype, shape);
      for (const Strides& strides : some_strides(shape)) {
        arrays.push_back(with_strides(values, strides));
        views.push_back(arrays.back().view);
        for (double v : arrays.back().values()) want += static_cast<long double>(v) * v;
      }
    }
  }
  std::vector<double> results;
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    results.push_back(L2NormSquared::cpu(views));
  }
  set_num_threads(0);
  EXPECT_NEAR(results[0], static_cast<double>(want), 1e-13 * static_cast<double>(want));
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(L2NormSquared::cpu({}), 0);
  // Squares that f32 could not hold.
  const Array large = filled(empty(DType::kF32, {5}), [](int64_t) { return 1e30; });
  EXPECT_NEAR(L2NormSquared::cpu({&large.view, 1}), 5e60, 1e54);
}

// Of all dtypes and strides, of no and of more than one chunk, with numbers that overflow, become
// zero or are none. Values of f16 are up to 1024.
std::vector<Array> arrays() {
  std::vector<Array> out;
  for (DType dtype : kFloats) {
    for (const Shape& shape :
         {Shape{7, 13}, Shape{2, 3, 4, 5}, Shape{0, 2}, Shape{}, Shape{33333}, Shape{5, 8001}}) {
      const Array values = sample(dtype, shape, -1024, 1024, static_cast<int64_t>(out.size()));
      const double odd[] = {kNan, kInf, -kInf, 6e-8, -0.0, 65504};
      for (int64_t i = 0; i < std::min<int64_t>(6, values.numel()); ++i) {
        values.set(values.numel() - 1 - i, odd[i]);
      }
      for (const Strides& strides : some_strides(shape)) {
        out.push_back(with_strides(values, strides));
      }
    }
  }
  return out;
}

std::vector<View> views_of(const std::vector<Array>& arrays) {
  std::vector<View> out;
  for (const Array& x : arrays) out.push_back(x.view);
  return out;
}

// Element by element; zeros with their signs, any NaN for a NaN.
void expect_same(const std::vector<Array>& got, const std::vector<Array>& want) {
  for (size_t k = 0; k < want.size(); ++k) {
    for (int64_t i = 0; i < want[k].numel(); ++i) {
      const double x = got[k].get(i), y = want[k].get(i);
      ASSERT_TRUE(std::isnan(y) ? std::isnan(x) : x == y && std::signbit(x) == std::signbit(y))
          << name(want[k].view.dtype) << to_string(want[k].shape()) << " at " << i << ": " << x
          << ", want " << y;
    }
  }
}

Array constant(DType dtype, double value) {
  const Array x = empty(dtype, {});
  Fill::cpu(x.view, value);
  return x;
}

TEST(ScaleAll, GivesTheProductsOfMul) {
  for (double factor : {1.0 / 65536, 1 / 3.0, -7e4, 0.0, kInf}) {
    const std::vector<Array> want = arrays();
    for (const Array& x : want) {
      const Array by = constant(x.view.dtype, factor);
      Binary<Mul>::cpu(x.view, by.view.expanded(x.shape()), x.view);
    }
    for (int threads : {1, 3}) {
      set_num_threads(threads);
      const std::vector<Array> got = arrays();
      ScaleAll::cpu(views_of(got), factor);
      expect_same(got, want);
    }
    set_num_threads(0);
  }
  ScaleAll::cpu({}, 2);
}

TEST(ScaleAllNormSquared, IsTheNormOfTheProducts) {
  const auto finite = [] {
    std::vector<Array> out = arrays();
    for (const Array& x : out) {
      for (int64_t i = 0; i < x.numel(); ++i) {
        if (!std::isfinite(x.get(i))) x.set(i, 3);
      }
    }
    return out;
  };
  const std::vector<Array> want = finite();
  ScaleAll::cpu(views_of(want), 0.3);
  const double norm = L2NormSquared::cpu(views_of(want));
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    const std::vector<Array> got = finite();
    EXPECT_EQ(ScaleAllNormSquared::cpu(views_of(got), 0.3), norm);
    expect_same(got, want);
  }
  set_num_threads(0);
  EXPECT_EQ(ScaleAllNormSquared::cpu({}, 2), 0);
}

TEST(ScaleAllNormSquared, ShowsWhatIsNotFinite) {
  for (DType dtype : kFloats) {
    for (double bad : {kNan, kInf, -kInf}) {
      const Array x = sample(dtype, {40001});
      x.set(39999, bad);
      EXPECT_FALSE(std::isfinite(ScaleAllNormSquared::cpu({&x.view, 1}, 1.0 / 65536)));
    }
  }
}

TEST(ClampAll, PutsAllWithinTheLimitsAsTheDtypeHasThem) {
  const std::vector<Array> want = arrays();
  for (const Array& x : want) {
    const double low = constant(x.view.dtype, -0.7).get(0),
                 high = constant(x.view.dtype, 0.3).get(0);
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (x.get(i) < low) x.set(i, low);
      if (x.get(i) > high) x.set(i, high);
    }
  }
  const std::vector<Array> got = arrays();
  ClampAll::cpu(views_of(got), -0.7, 0.3);
  expect_same(got, want);
}

TEST(ScaleAll, ChangesNothingWhereOneIsNotFloating) {
  const Array x = sample(DType::kF32, {7});
  const Array integers = sample(DType::kI32, {7});
  const std::vector<double> before = x.values();
  const View views[] = {x.view, integers.view};
  EXPECT_THROW(ScaleAll::cpu(views, 2), Error);
  EXPECT_THROW(ScaleAllNormSquared::cpu(views, 2), Error);
  EXPECT_THROW(ClampAll::cpu(views, 0, 0), Error);
  EXPECT_EQ(x.values(), before);
}

}  // namespace
}  // namespace lockstep::kernels
