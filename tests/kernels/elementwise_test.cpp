#include "lockstep/kernels/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

// The value that the C library gives in double.
double reference(std::string_view op, double x) {
  if (op == "neg") return -x;
  if (op == "abs") return std::abs(x);
  if (op == "sign") return x == 0 || std::isnan(x) ? x : std::copysign(1, x);
  if (op == "exp") return std::exp(x);
  if (op == "log") return std::log(x);
  if (op == "log1p") return std::log1p(x);
  if (op == "expm1") return std::expm1(x);
  if (op == "sqrt") return std::sqrt(x);
  if (op == "rsqrt") return 1 / std::sqrt(x);
  if (op == "sin") return std::sin(x);
  if (op == "cos") return std::cos(x);
  if (op == "tanh") return std::tanh(x);
  if (op == "sigmoid") return 1 / (1 + std::exp(-x));
  if (op == "relu") return std::isnan(x) ? x : std::max(x, 0.0);
  if (op == "gelu") return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  if (op == "gelu_tanh") {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  if (op == "silu") return x / (1 + std::exp(-x));
  if (op == "softplus") return std::log1p(std::exp(x));
  if (op == "erf") return std::erf(x);
  if (op == "square") return x * x;
  if (op == "reciprocal") return 1 / x;
  ADD_FAILURE() << "no reference for " << op;
  return kNan;
}

double reference(std::string_view op, double a, double b) {
  if (op == "add") return a + b;
  if (op == "sub") return a - b;
  if (op == "mul") return a * b;
  if (op == "div") return a / b;
  if (op == "pow") return std::pow(a, b);
  if (op == "maximum") return std::isnan(a) || std::isnan(b) ? kNan : std::max(a, b);
  if (op == "minimum") return std::isnan(a) || std::isnan(b) ? kNan : std::min(a, b);
  if (op == "leaky_relu") return a > 0 ? a : a * b;
  ADD_FAILURE() << "no reference for " << op;
  return kNan;
}

template <class Op>
void check_unary_values() {
  SCOPED_TRACE(Op::kName);
  for (DType dtype : kFloats) {
    const double bound = 8 * epsilon(dtype);
    for (int64_t n : {0, 1, 7, 513, 1031}) {
      const Array x = sample(dtype, {n}, Op::kLow, Op::kHigh);
      const Array y = empty(dtype, {n});
      Unary<Op>::cpu(x.view, y.view);
      for (int64_t i = 0; i < n; ++i) {
        // Half of f32's error may show in a result near 0 that is a difference.
        ASSERT_TRUE(close(y.get(i), reference(Op::kName, x.get(i)), bound, 0x1p-22 * bound * 1e6))
            << name(dtype) << " " << x.get(i);
      }
    }
  }
}

TEST(Unary, ValuesAreTheCLibrarys) {
#define LOCKSTEP_CHECK(Op, function) check_unary_values<Op>();
  LOCKSTEP_UNARY_OPS(LOCKSTEP_CHECK)
#undef LOCKSTEP_CHECK
}

template <class Op>
void check_unary_special_values() {
  SCOPED_TRACE(Op::kName);
  const double special[] = {kNan, 0, 1e-3, -1e-3};
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const Array x = filled(empty(dtype, {4}), [&](int64_t i) { return special[i]; });
    const Array y = empty(dtype, {4});
    Unary<Op>::cpu(x.view, y.view);
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(close(y.get(i), reference(Op::kName, x.get(i)), 1e-6, 1e-9)) << x.get(i);
    }
  }
}

TEST(Unary, NanZeroAndSmallNumbers) {
#define LOCKSTEP_CHECK(Op, function) check_unary_special_values<Op>();
  LOCKSTEP_UNARY_OPS(LOCKSTEP_CHECK)
#undef LOCKSTEP_CHECK
}

// The rule against a central difference of the C library's function.
template <class Op>
void check_unary_vjp() {
  SCOPED_TRACE(Op::kName);
  if (Op::kName == "sign") return;  // its difference is 0 or infinite
  for (DType dtype : {DType::kF64, DType::kF32}) {
    const int64_t n = 37;
    const Array x = sample(dtype, {n}, Op::kLow, Op::kHigh);
    const Array g = sample(dtype, {n}, -1, 1, 3);
    const Array y = empty(dtype, {n});
    const Array gx = empty(dtype, {n});
    Unary<Op>::cpu(x.view, y.view);
    UnaryVjp<Op>::cpu(g.view, Op::kUsesX ? x.view : g.view, Op::kUsesY ? y.view : g.view, gx.view);
    for (int64_t i = 0; i < n; ++i) {
      const double h = 1e-5;
      const double slope =
          (reference(Op::kName, x.get(i) + h) - reference(Op::kName, x.get(i) - h)) / (2 * h);
      ASSERT_TRUE(close(gx.get(i), g.get(i) * slope, 1e-5, 1e-6)) << x.get(i);
    }
  }
}

TEST(UnaryVjp, IsTheDerivative) {
#define LOCKSTEP_CHECK(Op, function) check_unary_vjp<Op>();
  LOCKSTEP_UNARY_OPS(LOCKSTEP_CHECK)
#undef LOCKSTEP_CHECK
}

template <class Op>
void check_binary() {
  SCOPED_TRACE(Op::kName);
  for (DType dtype : kFloats) {
    const int64_t n = 1031;
    // Powers want a positive base; the slope of a leaky ReLU shows below zero.
    const Array a = sample(dtype, {n}, Op::kName == "leaky_relu" ? -1.9 : 0.3, 2);
    const Array b = sample(dtype, {n}, 0.5, 1.7, 5);
    const Array g = sample(dtype, {n}, -1, 1, 3);
    const Array y = empty(dtype, {n});
    const Array ga = empty(dtype, {n});
    const Array gb = empty(dtype, {n});
    Binary<Op>::cpu(a.view, b.view, y.view);
    BinaryVjpA<Op>::cpu(g.view, a.view, b.view, y.view, ga.view);
    BinaryVjpB<Op>::cpu(g.view, a.view, b.view, y.view, gb.view);
    for (int64_t i = 0; i < n; ++i) {
      const double p = a.get(i);
      const double q = b.get(i);
      ASSERT_TRUE(
          close(y.get(i), reference(Op::kName, p, q), 2 * epsilon(dtype), 2 * epsilon(dtype)));
      const double h = 1e-6;
      const double da = (reference(Op::kName, p + h, q) - reference(Op::kName, p - h, q)) / (2 * h);
      const double db = (reference(Op::kName, p, q + h) - reference(Op::kName, p, q - h)) / (2 * h);
      const double bound = 1e-7 + 8 * epsilon(dtype);
      ASSERT_TRUE(close(ga.get(i), g.get(i) * da, bound, bound)) << p << " " << q;
      ASSERT_TRUE(close(gb.get(i), g.get(i) * db, bound, bound)) << p << " " << q;
    }
  }
}

TEST(Binary, ValuesAndRulesAreTheCLibrarys) {
#define LOCKSTEP_CHECK(Op, function) check_binary<Op>();
  LOCKSTEP_BINARY_OPS(LOCKSTEP_CHECK)
#undef LOCKSTEP_CHECK
}

// Every memory order of operands and result, and broadcasting along any set of dimensions.
TEST(Binary, StridesChangeNothing) {
  const Shape shape = {3, 5, 7, 11};
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF64}) {
    const Array a = sample(dtype, shape, -9, 9);
    for (int broadcast = 0; broadcast < 16; ++broadcast) {
      Shape small = shape;
      for (size_t d = 0; d < 4; ++d) {
        if (broadcast >> d & 1) small[d] = 1;
      }
      const Array b = sample(dtype, small, -9, 9, 2);
      for (const Strides& a_strides : some_strides(shape)) {
        for (const Strides& b_strides : some_strides(small)) {
          for (const Strides& y_strides : some_strides(shape)) {
            const Array left = with_strides(a, a_strides);
            Array right = with_strides(b, b_strides);
            right.view.shape = shape;
            for (size_t d = 0; d < 4; ++d) {
              if (small[d] == 1) right.view.strides[d] = 0;
            }
            const Array y = empty(dtype, shape, y_strides);
            Binary<Sub>::cpu(left.view, right.view, y.view);
            for (int64_t i = 0; i < y.numel(); i += 13) {
              const Array want =
                  filled(empty(dtype, {1}), [&](int64_t) { return left.get(i) - right.get(i); });
              ASSERT_EQ(y.get(i), want.get(0)) << to_string(y_strides) << i;
            }
          }
        }
      }
    }
  }
}

TEST(Binary, ThreadsAndLongRowsChangeNothing) {
  const Shape shape = {130, 1025};
  const Array a = sample(DType::kF32, shape);
  const Array row = sample(DType::kF32, {1025}, -1, 1, 1);
  const Array column = sample(DType::kF32, {130}, -1, 1, 2);
  View wide_row = row.view;
  wide_row.shape = shape;
  wide_row.strides = {0, 1};
  View wide_column = column.view;
  wide_column.shape = shape;
  wide_column.strides = {1, 0};
  const Array y = empty(DType::kF32, shape);
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Binary<Add>::cpu(a.view, wide_row, y.view);
    Binary<Mul>::cpu(y.view, wide_column, y.view);
    for (int64_t i = 0; i < y.numel(); ++i) {
      const auto sum = static_cast<float>(a.get(i) + row.get(i % 1025));
      ASSERT_EQ(y.get(i), static_cast<float>(sum * column.get(i / 1025))) << i;
    }
  }
  set_num_threads(0);
}

TEST(Binary, MayWriteOverAnOperand) {
  for (DType dtype : {DType::kF32, DType::kF16}) {
    for (const Strides& strides : some_strides({7, 101})) {
      const Array a = sample(dtype, {7, 101});
      const Array x = with_strides(a, strides);
      Binary<Add>::cpu(x.view, x.view, x.view);
      for (int64_t i = 0; i < x.numel(); ++i) ASSERT_EQ(x.get(i), 2 * a.get(i));
    }
  }
}

TEST(Binary, IntegersWrap) {
  for (DType dtype : kIntegers) {
    visit_dtype(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (std::is_integral_v<T>) {
        const Array low = empty(dtype, {1});
        const Array high = empty(dtype, {1});
        const Array y = empty(dtype, {1});
        low.view.template as<T>()[0] = std::numeric_limits<T>::min();
        high.view.template as<T>()[0] = std::numeric_limits<T>::max();
        const Array one = filled(empty(dtype, {1}), [](int64_t) { return 1; });
        Binary<Add>::cpu(high.view, one.view, y.view);
        EXPECT_EQ(y.view.template as<T>()[0], std::numeric_limits<T>::min());
        Binary<Sub>::cpu(low.view, one.view, y.view);
        EXPECT_EQ(y.view.template as<T>()[0], std::numeric_limits<T>::max());
        Binary<Mul>::cpu(high.view, high.view, y.view);
        EXPECT_EQ(y.get(0), 1);
        Unary<Abs>::cpu(low.view, y.view);
        EXPECT_EQ(y.view.template as<T>()[0], std::numeric_limits<T>::min());
        Unary<Neg>::cpu(one.view, y.view);
        EXPECT_EQ(y.view.template as<T>()[0], static_cast<T>(-1));
        Binary<Maximum>::cpu(low.view, high.view, y.view);
        EXPECT_EQ(y.view.template as<T>()[0], std::numeric_limits<T>::max());
      }
    });
  }
}

TEST(Binary, BoolIsOrAndExclusiveOr) {
  const Array a = filled(empty(DType::kBool, {4}), [](int64_t i) { return i & 1; });
  const Array b = filled(empty(DType::kBool, {4}), [](int64_t i) { return i >> 1; });
  const Array y = empty(DType::kBool, {4});
  Binary<Add>::cpu(a.view, b.view, y.view);
  EXPECT_EQ(y.values(), (std::vector<double>{0, 1, 1, 1}));
  Binary<Mul>::cpu(a.view, b.view, y.view);
  EXPECT_EQ(y.values(), (std::vector<double>{0, 0, 0, 1}));
  Binary<Sub>::cpu(a.view, b.view, y.view);
  EXPECT_EQ(y.values(), (std::vector<double>{0, 1, 1, 0}));
}

TEST(Binary, NanIsTheLargestAndTheSmallest) {
  for (DType dtype : kFloats) {
    const Array a = filled(empty(dtype, {3}), [](int64_t i) { return i == 0 ? kNan : 1; });
    const Array b = filled(empty(dtype, {3}), [](int64_t i) { return i == 1 ? kNan : 2; });
    const Array y = empty(dtype, {3});
    Binary<Maximum>::cpu(a.view, b.view, y.view);
    EXPECT_TRUE(std::isnan(y.get(0)) && std::isnan(y.get(1)) && y.get(2) == 2);
    Binary<Minimum>::cpu(a.view, b.view, y.view);
    EXPECT_TRUE(std::isnan(y.get(0)) && std::isnan(y.get(1)) && y.get(2) == 1);
  }
}

TEST(BinaryVjp, EqualOperandsShareTheGradient) {
  const Array a = filled(empty(DType::kF64, {1}), [](int64_t) { return 2; });
  const Array g = filled(empty(DType::kF64, {1}), [](int64_t) { return 3; });
  const Array out = empty(DType::kF64, {1});
  BinaryVjpA<Maximum>::cpu(g.view, a.view, a.view, a.view, out.view);
  EXPECT_EQ(out.get(0), 1.5);
  BinaryVjpB<Minimum>::cpu(g.view, a.view, a.view, a.view, out.view);
  EXPECT_EQ(out.get(0), 1.5);
}

TEST(BinaryVjp, PowerAtZeroHasAFiniteGradient) {
  const double base[] = {0, 0, 0, 2};
  const double exponent[] = {0, 1, 2, 0};
  const double want_a[] = {0, 1, 0, 0};
  const double want_b[] = {0, 0, 0, std::log(2)};
  const Array a = filled(empty(DType::kF64, {4}), [&](int64_t i) { return base[i]; });
  const Array b = filled(empty(DType::kF64, {4}), [&](int64_t i) { return exponent[i]; });
  const Array g = filled(empty(DType::kF64, {4}), [](int64_t) { return 1; });
  const Array y = empty(DType::kF64, {4});
  const Array out = empty(DType::kF64, {4});
  Binary<Pow>::cpu(a.view, b.view, y.view);
  BinaryVjpA<Pow>::cpu(g.view, a.view, b.view, y.view, out.view);
  for (int64_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(out.get(i), want_a[i]) << i;
  BinaryVjpB<Pow>::cpu(g.view, a.view, b.view, y.view, out.view);
  for (int64_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(out.get(i), want_b[i]) << i;
}

TEST(Compare, EveryDtypeAndNan) {
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    const Array a = filled(empty(dtype, {3}), [](int64_t i) { return i > 0; });
    const Array b = filled(empty(dtype, {3}), [](int64_t i) { return i < 2; });
    const Array y = empty(DType::kBool, {3});  // compares 0 with 1, 1 with 1, 1 with 0
    const auto expect = [&](auto op, std::vector<double> want) {
      Compare<decltype(op)>::cpu(a.view, b.view, y.view);
      EXPECT_EQ(y.values(), want) << name(dtype);
    };
    expect(Equal{}, {0, 1, 0});
    expect(NotEqual{}, {1, 0, 1});
    expect(Less{}, {1, 0, 0});
    expect(LessEqual{}, {1, 1, 0});
    expect(Greater{}, {0, 0, 1});
    expect(GreaterEqual{}, {0, 1, 1});
  }
  const Array x = filled(empty(DType::kBF16, {1}), [](int64_t) { return kNan; });
  const Array y = empty(DType::kBool, {1});
  Compare<Equal>::cpu(x.view, x.view, y.view);
  EXPECT_EQ(y.get(0), 0);
  Compare<NotEqual>::cpu(x.view, x.view, y.view);
  EXPECT_EQ(y.get(0), 1);
}

TEST(Where, ChoosesInEveryDtype) {
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    const Array condition =
        filled(empty(DType::kBool, {5, 41}), [](int64_t i) { return i % 3 == 0; });
    const Array a = sample(dtype, {5, 41}, 0, 100);
    Array b = sample(dtype, {5, 1}, 0, 100, 4);
    b.view.shape = {5, 41};
    b.view.strides = {1, 0};
    const Array y = empty(dtype, {5, 41}, {1, 5});
    Where::cpu(condition.view, a.view, b.view, y.view);
    for (int64_t i = 0; i < y.numel(); ++i) {
      ASSERT_EQ(y.get(i), i % 3 == 0 ? a.get(i) : b.get(i)) << name(dtype) << i;
    }
  }
}

TEST(Elementwise, ADtypeThatAnOpLacksIsAnErrorThatNamesIt) {
  const Array x = sample(DType::kI32, {3}, 0, 9);
  const Array y = empty(DType::kI32, {3});
  try {
    Unary<Exp>::cpu(x.view, y.view);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "[exp] want a floating dtype, got i32");
  }
  EXPECT_THROW(Binary<Div>::cpu(x.view, x.view, y.view), Error);
  EXPECT_THROW(UnaryVjp<Relu>::cpu(x.view, x.view, x.view, y.view), Error);
}

}  // namespace
}  // namespace lockstep::kernels
