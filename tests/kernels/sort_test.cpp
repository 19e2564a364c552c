#include "lockstep/kernels/sort.h"

#include "arrays.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

// Holds the places along `axis` to what sorting means: each once, in order, equals in x's order.
void expect_sorted(const Array& x, const Array& places, size_t axis, bool descending) {
  const Shape& shape = x.shape();
  int64_t inner = 1;
  for (size_t d = axis + 1; d < shape.size(); ++d) inner *= shape[d];
  const int64_t n = shape[axis];
  const int64_t wanted = places.shape()[axis];
  for (int64_t line = 0; line < x.numel() / n; ++line) {
    const int64_t x_at = line / inner * inner * n + line % inner;
    const int64_t places_at = line / inner * inner * wanted + line % inner;
    std::vector<bool> seen(static_cast<size_t>(n));
    const auto key = [&](int64_t i) { return x.get(x_at + i * inner); };
    // Whether the element at i may stand before the one at j.
    const auto before = [&](int64_t i, int64_t j) {
      const double a = descending ? key(j) : key(i);
      const double b = descending ? key(i) : key(j);
      const bool equal = a == b || (std::isnan(a) && std::isnan(b));
      return equal ? i < j : (std::isnan(b) || a < b);
    };
    int64_t last = -1;
    for (int64_t k = 0; k < wanted; ++k) {
      const auto i = static_cast<int64_t>(places.get(places_at + k * inner));
      ASSERT_TRUE(i >= 0 && i < n && !seen[static_cast<size_t>(i)]) << i;
      seen[static_cast<size_t>(i)] = true;
      ASSERT_TRUE(k == 0 || before(last, i)) << last << " " << i;
      last = i;
    }
    for (int64_t i = 0; i < n && wanted > 0; ++i) {
      ASSERT_TRUE(seen[static_cast<size_t>(i)] || before(last, i)) << last << " " << i;
    }
  }
}

TEST(ArgSort, EveryDtypeAxisDirectionAndMemoryOrder) {
  const Shape shape = {3, 17, 5};
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    const Array values = sample(dtype, shape, 0, 9);  // integers repeat
    for (size_t axis = 0; axis < 3; ++axis) {
      for (bool descending : {false, true}) {
        for (int64_t count : {int64_t{0}, int64_t{2}, shape[axis]}) {
          Shape wanted = shape;
          wanted[axis] = count;
          for (const Strides& strides : some_strides(shape)) {
            const Array places = empty(DType::kI64, wanted, some_strides(wanted)[1]);
            ArgSort::cpu(with_strides(values, strides).view, places.view,
                         static_cast<int64_t>(axis), descending);
            expect_sorted(values, places, axis, descending);
          }
        }
      }
    }
  }
}

TEST(ArgSort, NanIsTheLargest) {
  const double in[] = {2, kNan, -kInf, kInf, kNan, 0, -0.0};
  const Array x = filled(empty(DType::kF16, {7}), [&](int64_t i) { return in[i]; });
  const Array places = empty(DType::kI64, {7});
  ArgSort::cpu(x.view, places.view, 0, false);
  EXPECT_EQ(places.values(), (std::vector<double>{2, 5, 6, 0, 3, 1, 4}));
  ArgSort::cpu(x.view, places.view, 0, true);
  EXPECT_EQ(places.values(), (std::vector<double>{1, 4, 3, 0, 5, 6, 2}));
}

std::vector<double> nonzero(const Array& x, bool coordinates) {
  const int64_t count = CountNonzero::cpu(x.view);
  const Array out = empty(DType::kI64, coordinates ? Shape{count, x.view.dim()} : Shape{count});
  Nonzero::cpu(x.view, out.view);
  return out.values();
}

TEST(Nonzero, FindsThePlacesInRowMajorOrder) {
  const Shape shape = {3, 5, 2};
  for (int code = 0; code < kDTypeCount; ++code) {
    const Array values = filled(empty(static_cast<DType>(code), shape),
                                [](int64_t i) { return i % 4 == 1 || i % 7 == 2 ? 1 : 0; });
    std::vector<double> want, coordinates;
    for (int64_t i = 0; i < values.numel(); ++i) {
      if (values.get(i) == 0) continue;
      want.push_back(static_cast<double>(i));
      for (const int64_t c : {i / 10, i / 2 % 5, i % 2}) {
        coordinates.push_back(static_cast<double>(c));
      }
    }
    for (const Strides& strides : some_strides(shape)) {
      EXPECT_EQ(nonzero(with_strides(values, strides), false), want);
      EXPECT_EQ(nonzero(with_strides(values, strides), true), coordinates);
    }
  }
  EXPECT_TRUE(nonzero(empty(DType::kF32, {0, 3}), true).empty());
  const Array scalar = filled(empty(DType::kF32, {}), [](int64_t) { return kNan; });
  EXPECT_EQ(nonzero(scalar, false), std::vector<double>{0});
  EXPECT_TRUE(nonzero(scalar, true).empty());  // (1, 0)
}

// Lines that are cut where threads meet.
TEST(Nonzero, OfManyIsInOrderToo) {
  for (const Shape& shape : {Shape{300001}, Shape{3, 100003}, Shape{70001, 5}}) {
    const Array x =
        filled(empty(DType::kBool, shape), [](int64_t i) { return noise(i, 0, 1) < 0.4 ? 1 : 0; });
    std::vector<double> want;
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (x.get(i) == 0) continue;
      if (shape.size() == 2) want.push_back(static_cast<double>(i / shape[1]));
      want.push_back(static_cast<double>(i % shape.back()));
    }
    EXPECT_EQ(nonzero(x, true), want) << to_string(shape);
  }
}

}  // namespace
}  // namespace lockstep::kernels
