#include "lockstep/kernels/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

// x's shape with the dimensions in the bits of `gone` reduced to 1.
Shape kept_shape(Shape shape, int gone) {
  for (size_t d = 0; d < shape.size(); ++d) {
    if (gone >> d & 1) shape[d] = 1;
  }
  return shape;
}

// For each element of the result, in row-major order, the elements of x that become it, likewise.
std::vector<std::vector<double>> groups(const Array& x, const Shape& kept) {
  std::vector<std::vector<double>> out(static_cast<size_t>(lockstep::numel(kept)));
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t rest = i;
    int64_t place = 0;
    int64_t step = 1;
    for (size_t d = kept.size(); d-- > 0;) {
      if (kept[d] != 1) place += rest % x.shape()[d] * step;
      rest /= x.shape()[d];
      step *= kept[d];
    }
    out[static_cast<size_t>(place)].push_back(x.get(i));
  }
  return out;
}

double sum_of(const std::vector<double>& v) {
  double out = 0;
  for (double x : v) out += x;
  return out;
}
double prod_of(const std::vector<double>& v) {
  double out = 1;
  for (double x : v) out *= x;
  return out;
}
double max_of(const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }
double min_of(const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }
double argmax_of(const std::vector<double>& v) {
  return static_cast<double>(std::max_element(v.begin(), v.end()) - v.begin());
}
double argmin_of(const std::vector<double>& v) {
  return static_cast<double>(std::min_element(v.begin(), v.end()) - v.begin());
}

// Every set of axes, every memory order of x and of the result.
template <class Kernel>
void check_all(DType dtype, DType result, const Shape& shape, double low, double high,
               const std::function<double(const std::vector<double>&)>& reference, double bound) {
  const Array values = sample(dtype, shape, low, high);
  for (int gone = 0; gone < 1 << shape.size(); ++gone) {
    const Shape kept = kept_shape(shape, gone);
    const auto parts = groups(values, kept);
    for (const Strides& x_strides : some_strides(shape)) {
      const Array x = with_strides(values, x_strides);
      for (const Strides& y_strides : some_strides(kept)) {
        const Array y = empty(result, kept, y_strides);
        Kernel::cpu(x.view, y.view);
        for (int64_t i = 0; i < y.numel(); ++i) {
          const auto& part = parts[static_cast<size_t>(i)];
          double size = 0;  // errors grow with the sizes of what was added
          for (double v : part) size += std::abs(v);
          ASSERT_TRUE(close(y.get(i), reference(part), bound, bound * size))
              << name(dtype) << " axes " << gone << " strides " << to_string(x_strides) << " at "
              << i;
        }
      }
    }
  }
}

TEST(Sum, EveryDtypeAxesAndStrides) {
  for (const Shape& shape : {Shape{3, 5, 7, 11}, Shape{2, 300, 3}, Shape{70, 1}, Shape{}}) {
    for (DType dtype : kFloats) {
      check_all<Sum>(dtype, dtype, shape, -1.5, 1.5, sum_of, 2 * epsilon(dtype));
    }
    for (DType dtype : kIntegers) check_all<Sum>(dtype, DType::kI64, shape, 0, 100, sum_of, 0);
    check_all<Sum>(DType::kBool, DType::kI64, shape, 0, 1.5, sum_of, 0);
  }
}

TEST(Prod, EveryAxesAndStrides) {
  check_all<Prod>(DType::kF64, DType::kF64, {3, 5, 7}, 0.7, 1.4, prod_of, 1e-12);
  check_all<Prod>(DType::kF32, DType::kF32, {3, 5, 7}, 0.7, 1.4, prod_of, 1e-5);
  check_all<Prod>(DType::kI32, DType::kI64, {3, 5, 2}, 1, 3, prod_of, 0);
}

TEST(Extremes, EveryDtypeAxesAndStrides) {
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    const double low = dtype == DType::kBool || dtype == DType::kU8 ? 0 : -60;
    for (const Shape& shape : {Shape{3, 5, 7, 11}, Shape{2, 300, 3}}) {
      check_all<Max>(dtype, dtype, shape, low, 60, max_of, 0);
      check_all<Min>(dtype, dtype, shape, low, 60, min_of, 0);
      check_all<ArgMax>(dtype, DType::kI64, shape, low, 60, argmax_of, 0);
      check_all<ArgMin>(dtype, DType::kI64, shape, low, 60, argmin_of, 0);
    }
  }
}

TEST(Extremes, NanWinsWhereverItStands) {
  for (DType dtype : kFloats) {
    for (int64_t n : {1, 3, 64, 65, 1031}) {
      for (int64_t place : {int64_t{0}, n / 2, n - 1}) {
        const Array x = filled(sample(dtype, {n, 3}), [&](int64_t i) {
          return i / 3 == place ? kNan : static_cast<double>(i);
        });
        for (const Strides& strides : some_strides({n, 3})) {
          const Array moved = with_strides(x, strides);
          const Array y = empty(dtype, {1, 3});
          const Array where = empty(DType::kI64, {1, 3});
          Max::cpu(moved.view, y.view);
          EXPECT_TRUE(std::isnan(y.get(1)));
          Min::cpu(moved.view, y.view);
          EXPECT_TRUE(std::isnan(y.get(1)));
          ArgMax::cpu(moved.view, where.view);
          EXPECT_EQ(where.get(1), place);
          ArgMin::cpu(moved.view, where.view);
          EXPECT_EQ(where.get(1), place);
        }
      }
    }
  }
}

// Long runs are searched in pieces. Of the peaks from `place` on the first counts, and of NaNs too,
// whatever is larger before or after them.
TEST(Extremes, PlacesInLongRunsAreThoseOfTheFirst) {
  constexpr int64_t kCount = 1201;
  const Array where = empty(DType::kI64, {1});
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kI64, DType::kI8}) {
    for (const int64_t place : {0, 1, 255, 256, 511, 512, 513, 1023, 1100, 1200}) {
      const auto peaks = [&](double peak, double sign) {
        return filled(empty(dtype, {kCount}), [=](int64_t i) {
          return i >= place && (i - place) % 301 == 0 ? peak
                                                      : sign * static_cast<double>(i * 7 % 50);
        });
      };
      ArgMax::cpu(peaks(60, 1).view, where.view);
      EXPECT_EQ(where.get(0), place) << name(dtype);
      ArgMin::cpu(peaks(-60, -1).view, where.view);
      EXPECT_EQ(where.get(0), place) << name(dtype);
      if (!is_floating(dtype)) continue;
      for (const auto kernel : {&ArgMax::cpu, &ArgMin::cpu}) {
        kernel(peaks(kNan, 1).view, where.view);
        EXPECT_EQ(where.get(0), place) << name(dtype);
      }
    }
  }
}

TEST(Extremes, InfinitiesAndTheFirstOfEqualsAreFound) {
  const Array low = filled(empty(DType::kF32, {70}), [](int64_t) { return -kInf; });
  const Array y = empty(DType::kF32, {1});
  const Array where = empty(DType::kI64, {1});
  Max::cpu(low.view, y.view);
  EXPECT_EQ(y.get(0), -kInf);
  ArgMax::cpu(low.view, where.view);
  EXPECT_EQ(where.get(0), 0);
  const Array equal = filled(empty(DType::kI32, {70}), [](int64_t i) { return i % 7; });
  ArgMax::cpu(equal.view, where.view);
  EXPECT_EQ(where.get(0), 6);
}

TEST(Extremes, OfNothingAreAnErrorThatNamesTheShape) {
  const Array x = empty(DType::kF32, {3, 0});
  const Array y = empty(DType::kF32, {3, 1});
  try {
    Max::cpu(x.view, y.view);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[max] want at least one element to choose from, got shape (3, 0)");
  }
  const Array places = empty(DType::kI64, {3, 1});
  EXPECT_THROW(ArgMin::cpu(x.view, places.view), Error);
  // With no results either, there is nothing to choose.
  const Array none = empty(DType::kF32, {1, 0});
  Max::cpu(x.view, none.view);
}

TEST(Sum, OfNothingIsZeroAndTheProductOne) {
  const Array x = empty(DType::kF32, {3, 0});
  const Array y = filled(empty(DType::kF32, {3, 1}), [](int64_t) { return 7; });
  Sum::cpu(x.view, y.view);
  EXPECT_EQ(y.values(), (std::vector<double>{0, 0, 0}));
  Prod::cpu(x.view, y.view);
  EXPECT_EQ(y.values(), (std::vector<double>{1, 1, 1}));
}

// The error of the longest chain of additions, 64 of half a unit each. One chain of all would be
// off by a thousand times as much.
constexpr double kChain = 64 * 0x1p-24;

TEST(Sum, StaysAccurateOverMillions) {
  const int64_t n = 20'000'003;
  for (const Shape& shape : {Shape{n, 1}, Shape{1, n}, Shape{n / 3, 3}}) {
    const Array x = empty(DType::kF32, shape);
    std::fill_n(x.view.as<float>(), x.numel(), 0.1f);
    const Shape kept = {1, shape[1] == 3 ? 3 : 1};
    const Array y = empty(DType::kF32, kept);
    for (int threads : {1, 3}) {
      set_num_threads(threads);
      Sum::cpu(x.view, y.view);
      const double want = static_cast<double>(x.numel() / y.numel()) * double{0.1f};
      EXPECT_TRUE(close(y.get(0), want, kChain)) << to_string(shape);
    }
  }
  set_num_threads(0);
}

TEST(Sum, ThreadsChangeNothingButRounding) {
  for (const Shape& shape :
       {Shape{5, 40000}, Shape{40000, 5}, Shape{300, 700}, Shape{64, 9, 500}}) {
    const Array x = sample(DType::kF64, shape);
    for (int gone = 1; gone < 1 << shape.size(); ++gone) {
      const Shape kept = kept_shape(shape, gone);
      const auto parts = groups(x, kept);
      const Array y = empty(DType::kF64, kept);
      for (int threads : {1, 2, 5}) {
        set_num_threads(threads);
        Sum::cpu(x.view, y.view);
        for (int64_t i = 0; i < y.numel(); ++i) {
          ASSERT_TRUE(close(y.get(i), sum_of(parts[static_cast<size_t>(i)]), 1e-11, 1e-9));
        }
      }
    }
  }
  set_num_threads(0);
}

// More than are taken side by side, by one thread and by several.
TEST(Reductions, ManyColumnsAreEachAsIfAlone) {
  constexpr int64_t kRows = 131;
  constexpr int64_t kColumns = 4499;
  for (const DType dtype : {DType::kF32, DType::kI32, DType::kF64}) {
    const Array x = sample(dtype, {kRows, kColumns}, -900, 900);
    const bool counts = !is_floating(dtype);
    const struct {
      void (*kernel)(const View&, const View&);
      DType result;
    } reductions[] = {
        {&Sum::cpu, counts ? DType::kI64 : dtype}, {&Max::cpu, dtype}, {&ArgMin::cpu, DType::kI64}};
    for (const auto& [kernel, result] : reductions) {
      for (const int threads : {1, 3}) {
        const Array y = empty(result, {1, kColumns});
        set_num_threads(threads);
        kernel(x.view, y.view);
        set_num_threads(0);
        for (int64_t c = 0; c < kColumns; c += 7) {
          View column = x.view;
          column.shape = {kRows, 1};
          column.data = static_cast<char*>(x.view.data) + c * static_cast<int64_t>(size_of(dtype));
          const Array alone = empty(result, {1, 1});
          kernel(column, alone.view);
          ASSERT_TRUE(close(y.get(c), alone.get(0), 1e-5, 1e-2))
              << name(dtype) << " column " << c << " " << threads << " threads";
        }
      }
    }
  }
}

TEST(Sum, OfABroadcastViewCountsEveryRepetition) {
  Array x = sample(DType::kF32, {3, 1});
  x.view.shape = {3, 1000};
  x.view.strides = {1, 0};
  const Array y = empty(DType::kF32, {3, 1});
  Sum::cpu(x.view, y.view);
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(close(y.get(i), 1000 * x.get(i * 1000), kChain));
}

TEST(Sum, SixteenBitFloatsAreSummedInMore) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Array x = filled(empty(dtype, {3000}), [](int64_t) { return 1; });
    const Array y = empty(dtype, {1});
    Sum::cpu(x.view, y.view);
    EXPECT_TRUE(close(y.get(0), 3000, epsilon(dtype)));
  }
}

TEST(Sum, IntegersWrap) {
  const Array x = empty(DType::kI64, {2});
  x.view.as<int64_t>()[0] = INT64_MAX;
  x.view.as<int64_t>()[1] = 1;
  const Array y = empty(DType::kI64, {1});
  Sum::cpu(x.view, y.view);
  EXPECT_EQ(y.view.as<int64_t>()[0], INT64_MIN);
}

}  // namespace
}  // namespace lockstep::kernels
