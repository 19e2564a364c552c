#pragma once

#include <concepts>
#include <limits>
#include <string_view>
#include <type_traits>

#include "lockstep/kernels/simd.h"
#include "lockstep/kernels/vector_math.h"
#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Element-wise ops. Each is one struct:
//
//   kName          its public name
//   fwd            the value of one element, for float, double and, where kIntegers, the integers
//   vjp            the gradient rule: g times the derivative. It is instantiated with numbers for
//                  fused loops and with T = Tensor for derivatives of any order, so it consists of
//                  + - * /, constant_like, where, comparisons by name, and other ops by name, which
//                  argument-dependent lookup finds for either. A Tensor that a rule does not use
//                  (see kUsesX and so on) may be undefined.
//   kLow, kHigh    where gradient checks take their samples
//   kIntegers      whether i64, i32, i8, u8 and bool have it
//   kWraps         integers are computed modulo 2^bits (as unsigned)
//
// The lists at the foot name every op once; what is made for each op is made from them.

// The scalar half of what a vjp may call; vector_math.h has the functions.
template <std::floating_point T>
LOCKSTEP_INLINE T constant_like(T, double value) {
  return static_cast<T>(value);
}
template <std::floating_point T>
LOCKSTEP_INLINE T where(bool condition, T a, T b) {
  return condition ? a : b;
}
template <std::floating_point T>
LOCKSTEP_INLINE bool gt(T a, T b) {
  return a > b;
}
template <std::floating_point T>
LOCKSTEP_INLINE bool ge(T a, T b) {
  return a >= b;
}
template <std::floating_point T>
LOCKSTEP_INLINE bool lt(T a, T b) {
  return a < b;
}
template <std::floating_point T>
LOCKSTEP_INLINE bool le(T a, T b) {
  return a <= b;
}
template <std::floating_point T>
LOCKSTEP_INLINE bool eq(T a, T b) {
  return a == b;
}

// What most unary ops are: floating, sampled around zero.
struct UnaryDefaults {
  static constexpr bool kUsesX = false;  // whether vjp looks at x
  static constexpr bool kUsesY = false;  // whether vjp looks at y
  static constexpr bool kIntegers = false;
  static constexpr bool kWraps = false;
  static constexpr double kLow = -1.7;
  static constexpr double kHigh = 1.9;
};

#define LOCKSTEP_FWD \
  template <class T> \
  static LOCKSTEP_INLINE T fwd(const T& x)
#define LOCKSTEP_VJP                                                                     \
  template <class T>                                                                     \
  static LOCKSTEP_INLINE T vjp([[maybe_unused]] const T& g, [[maybe_unused]] const T& x, \
                               [[maybe_unused]] const T& y)

struct Neg : UnaryDefaults {
  static constexpr std::string_view kName = "neg";
  static constexpr bool kIntegers = true;
  static constexpr bool kWraps = true;
  LOCKSTEP_FWD {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(T{0} - x);
    return static_cast<T>(-x);
  }
  LOCKSTEP_VJP { return -g; }
};

struct Abs : UnaryDefaults {
  static constexpr std::string_view kName = "abs";
  static constexpr bool kUsesX = true;
  static constexpr bool kIntegers = true;
  LOCKSTEP_FWD {
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(x < 0 ? static_cast<U>(U{0} - static_cast<U>(x)) : static_cast<U>(x));
    } else if constexpr (std::is_integral_v<T>) {
      return x;
    } else {
      return abs(x);
    }
  }
  LOCKSTEP_VJP { return g * sign(x); }
};

// -1, 0 or 1; NaN for NaN.
struct Sign : UnaryDefaults {
  static constexpr std::string_view kName = "sign";
  static constexpr bool kIntegers = true;
  LOCKSTEP_FWD {
    if constexpr (std::is_unsigned_v<T>) {
      return static_cast<T>(x != 0);
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>((x > 0) - (x < 0));
    } else {
      return sign(x);
    }
  }
  LOCKSTEP_VJP { return g * constant_like(g, 0); }
};

struct Exp : UnaryDefaults {
  static constexpr std::string_view kName = "exp";
  static constexpr bool kUsesY = true;
  LOCKSTEP_FWD { return exp(x); }
  LOCKSTEP_VJP { return g * y; }
};

struct Log : UnaryDefaults {
  static constexpr std::string_view kName = "log";
  static constexpr bool kUsesX = true;
  static constexpr double kLow = 0.3;
  LOCKSTEP_FWD { return log(x); }
  LOCKSTEP_VJP { return g / x; }
};

struct Log1p : UnaryDefaults {
  static constexpr std::string_view kName = "log1p";
  static constexpr bool kUsesX = true;
  static constexpr double kLow = -0.6;
  LOCKSTEP_FWD { return log1p(x); }
  LOCKSTEP_VJP { return g / (x + constant_like(x, 1)); }
};

struct Expm1 : UnaryDefaults {
  static constexpr std::string_view kName = "expm1";
  static constexpr bool kUsesY = true;
  LOCKSTEP_FWD { return expm1(x); }
  LOCKSTEP_VJP { return g * (y + constant_like(y, 1)); }
};

struct Sqrt : UnaryDefaults {
  static constexpr std::string_view kName = "sqrt";
  static constexpr bool kUsesY = true;
  static constexpr double kLow = 0.3;
  LOCKSTEP_FWD { return sqrt(x); }
  LOCKSTEP_VJP { return g / (y + y); }
};

struct Rsqrt : UnaryDefaults {
  static constexpr std::string_view kName = "rsqrt";
  static constexpr bool kUsesY = true;
  static constexpr double kLow = 0.3;
  LOCKSTEP_FWD { return rsqrt(x); }
  LOCKSTEP_VJP { return g * (y * y * y) * constant_like(y, -0.5); }
};

struct Sin : UnaryDefaults {
  static constexpr std::string_view kName = "sin";
  static constexpr bool kUsesX = true;
  LOCKSTEP_FWD { return sin(x); }
  LOCKSTEP_VJP { return g * cos(x); }
};

struct Cos : UnaryDefaults {
  static constexpr std::string_view kName = "cos";
  static constexpr bool kUsesX = true;
  LOCKSTEP_FWD { return cos(x); }
  LOCKSTEP_VJP { return -(g * sin(x)); }
};

struct Tanh : UnaryDefaults {
  static constexpr std::string_view kName = "tanh";
  static constexpr bool kUsesY = true;
  LOCKSTEP_FWD { return tanh(x); }
  LOCKSTEP_VJP { return g * (constant_like(y, 1) - y * y); }
};

struct Sigmoid : UnaryDefaults {
  static constexpr std::string_view kName = "sigmoid";
  static constexpr bool kUsesY = true;
  LOCKSTEP_FWD { return sigmoid(x); }
  LOCKSTEP_VJP { return g * (y * (constant_like(y, 1) - y)); }
};

// The gradient at 0 is 0.
struct Relu : UnaryDefaults {
  static constexpr std::string_view kName = "relu";
  static constexpr bool kUsesY = true;
  static constexpr bool kIntegers = true;
  LOCKSTEP_FWD { return x <= T{0} ? T{0} : x; }
  LOCKSTEP_VJP { return where(le(y, constant_like(y, 0)), constant_like(g, 0), g); }
};

// x times the normal distribution function (Hendrycks and Gimpel, 2016), by erf.
struct Gelu : UnaryDefaults {
  static constexpr std::string_view kName = "gelu";
  static constexpr bool kUsesX = true;
  static constexpr double kSqrtHalf = 0.70710678118654752440;
  static constexpr double kInvSqrt2Pi = 0.39894228040143267794;
  LOCKSTEP_FWD { return x * normal_cdf(x); }
  LOCKSTEP_VJP {
    return g * (normal_cdf(x) +
                x * (exp(x * x * constant_like(x, -0.5)) * constant_like(x, kInvSqrt2Pi)));
  }
  // fwd in two steps: see TwoSteps.
  static LOCKSTEP_INLINE float first(float x) {
    return log_erfc(x * static_cast<float>(kSqrtHalf));
  }
  static LOCKSTEP_INLINE float second(float x, float log_erfc_x) {
    return x * ((erf_from(x * static_cast<float>(kSqrtHalf), log_erfc_x) + 1.0f) * 0.5f);
  }

 private:
  template <class T>
  static LOCKSTEP_INLINE T normal_cdf(const T& x) {
    return (erf(x * constant_like(x, kSqrtHalf)) + constant_like(x, 1)) * constant_like(x, 0.5);
  }
};

// GELU's approximation by tanh (Hendrycks and Gimpel, 2016): x/2 (1 + tanh(u)) with
// u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh : UnaryDefaults {
  static constexpr std::string_view kName = "gelu_tanh";
  static constexpr bool kUsesX = true;
  static constexpr double kSqrt2OverPi = 0.79788456080286535588;
  static constexpr double kCube = 0.044715;
  LOCKSTEP_FWD {  // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u))
    return x / (exp(argument(x) * constant_like(x, -2)) + constant_like(x, 1));
  }
  LOCKSTEP_VJP {
    const T t = tanh(argument(x));
    const T half = constant_like(x, 0.5);
    // 1 - t^2 times u'. Where x^2 is beyond the dtype the first is 0 and the product must be too.
    const T slope = (x * x * constant_like(x, 3 * kCube) + constant_like(x, 1)) *
                    constant_like(x, kSqrt2OverPi);
    const T rest = constant_like(x, 1) - t * t;
    const T flat = constant_like(x, 0);
    return g * (half * (t + constant_like(x, 1)) +
                half * x * where(eq(rest, flat), flat, rest * slope));
  }

 private:
  template <class T>
  static LOCKSTEP_INLINE T argument(const T& x) {
    return x * (x * x * constant_like(x, kCube) + constant_like(x, 1)) *
           constant_like(x, kSqrt2OverPi);
  }
};

// x sigmoid(x) (Elfwing et al., 2017).
struct Silu : UnaryDefaults {
  static constexpr std::string_view kName = "silu";
  static constexpr bool kUsesX = true;
  LOCKSTEP_FWD { return x * sigmoid(x); }
  LOCKSTEP_VJP {
    const T s = sigmoid(x);
    return g * (s * (x * (constant_like(x, 1) - s) + constant_like(x, 1)));
  }
};

// log(1 + exp(x)).
struct Softplus : UnaryDefaults {
  static constexpr std::string_view kName = "softplus";
  static constexpr bool kUsesX = true;
  LOCKSTEP_FWD {
    const T positive = x <= T{0} ? T{0} : x;  // keeps NaN
    return positive + log1p(exp(-abs(x)));
  }
  LOCKSTEP_VJP { return g * sigmoid(x); }
};

struct Erf : UnaryDefaults {
  static constexpr std::string_view kName = "erf";
  static constexpr bool kUsesX = true;
  static constexpr double kTwoOverSqrtPi = 1.12837916709551257390;
  LOCKSTEP_FWD { return erf(x); }
  LOCKSTEP_VJP { return g * (exp(-(x * x)) * constant_like(x, kTwoOverSqrtPi)); }
};

struct Square : UnaryDefaults {
  static constexpr std::string_view kName = "square";
  static constexpr bool kUsesX = true;
  static constexpr bool kIntegers = true;
  static constexpr bool kWraps = true;
  LOCKSTEP_FWD { return static_cast<T>(x * x); }
  LOCKSTEP_VJP { return g * (x + x); }
};

struct Reciprocal : UnaryDefaults {
  static constexpr std::string_view kName = "reciprocal";
  static constexpr bool kUsesY = true;
  static constexpr double kLow = 0.4;
  LOCKSTEP_FWD { return T{1} / x; }
  LOCKSTEP_VJP { return -(g * (y * y)); }
};

#undef LOCKSTEP_FWD
#undef LOCKSTEP_VJP

struct BinaryDefaults {
  static constexpr bool kUsesOperands = false;  // whether a vjp looks at a or b
  static constexpr bool kUsesY = false;         // whether a vjp looks at y
  static constexpr bool kIntegers = true;
  static constexpr bool kWraps = false;
};

#define LOCKSTEP_FWD \
  template <class T> \
  static LOCKSTEP_INLINE T fwd(const T& a, const T& b)
#define LOCKSTEP_VJP_OF(operand)                                                                   \
  template <class T>                                                                               \
  static LOCKSTEP_INLINE T vjp_##operand([[maybe_unused]] const T& g, [[maybe_unused]] const T& a, \
                                         [[maybe_unused]] const T& b, [[maybe_unused]] const T& y)

struct Add : BinaryDefaults {
  static constexpr std::string_view kName = "add";
  static constexpr bool kWraps = true;
  LOCKSTEP_FWD { return static_cast<T>(a + b); }
  LOCKSTEP_VJP_OF(a) { return g; }
  LOCKSTEP_VJP_OF(b) { return g; }
};

struct Sub : BinaryDefaults {
  static constexpr std::string_view kName = "sub";
  static constexpr bool kWraps = true;
  LOCKSTEP_FWD { return static_cast<T>(a - b); }
  LOCKSTEP_VJP_OF(a) { return g; }
  LOCKSTEP_VJP_OF(b) { return -g; }
};

struct Mul : BinaryDefaults {
  static constexpr std::string_view kName = "mul";
  static constexpr bool kUsesOperands = true;
  static constexpr bool kWraps = true;
  LOCKSTEP_FWD { return static_cast<T>(a * b); }
  LOCKSTEP_VJP_OF(a) { return g * b; }
  LOCKSTEP_VJP_OF(b) { return g * a; }
};

// Floating dtypes alone.
struct Div : BinaryDefaults {
  static constexpr std::string_view kName = "div";
  static constexpr bool kUsesOperands = true;
  static constexpr bool kUsesY = true;
  static constexpr bool kIntegers = false;
  LOCKSTEP_FWD { return a / b; }
  LOCKSTEP_VJP_OF(a) { return g / b; }
  LOCKSTEP_VJP_OF(b) { return -(g * y / b); }
};

// Floating dtypes alone. The gradient of a^0 with respect to a, and of 0^b with respect to b, is 0.
// The constants that stand in for b and a there keep 0 * inf out of second derivatives too.
struct Pow : BinaryDefaults {
  static constexpr std::string_view kName = "pow";
  static constexpr bool kUsesOperands = true;
  static constexpr bool kUsesY = true;
  static constexpr bool kIntegers = false;
  LOCKSTEP_FWD { return pow(a, b); }
  LOCKSTEP_VJP_OF(a) {
    const T exponent = where(eq(b, constant_like(b, 0)), constant_like(b, 1), b);
    return g * (b * pow(a, exponent - constant_like(b, 1)));
  }
  LOCKSTEP_VJP_OF(b) {
    return g * (y * log(where(eq(a, constant_like(a, 0)), constant_like(a, 1), a)));
  }
};

// NaN if either is NaN. Equal operands share the gradient evenly.
struct Maximum : BinaryDefaults {
  static constexpr std::string_view kName = "maximum";
  static constexpr bool kUsesOperands = true;
  LOCKSTEP_FWD { return ((a > b) | (a != a)) ? a : b; }
  LOCKSTEP_VJP_OF(a) { return share(g, gt(a, b), eq(a, b)); }
  LOCKSTEP_VJP_OF(b) { return share(g, gt(b, a), eq(a, b)); }

  template <class T, class C>
  static LOCKSTEP_INLINE T share(const T& g, const C& chosen, const C& equal) {
    return where(chosen, g, where(equal, g * constant_like(g, 0.5), constant_like(g, 0)));
  }
};

// NaN if either is NaN. Equal operands share the gradient evenly.
struct Minimum : BinaryDefaults {
  static constexpr std::string_view kName = "minimum";
  static constexpr bool kUsesOperands = true;
  LOCKSTEP_FWD { return ((a < b) | (a != a)) ? a : b; }
  LOCKSTEP_VJP_OF(a) { return Maximum::share(g, lt(a, b), eq(a, b)); }
  LOCKSTEP_VJP_OF(b) { return Maximum::share(g, lt(b, a), eq(a, b)); }
};

// a where it is over 0, else a times the slope b (Maas et al., 2013; with a learnt slope, He et
// al., 2015). The gradient at 0 is that of the slope.
struct LeakyRelu : BinaryDefaults {
  static constexpr std::string_view kName = "leaky_relu";
  static constexpr bool kUsesOperands = true;
  static constexpr bool kIntegers = false;
  LOCKSTEP_FWD { return a > T{0} ? a : a * b; }
  LOCKSTEP_VJP_OF(a) { return where(gt(a, constant_like(a, 0)), g, g * b); }
  LOCKSTEP_VJP_OF(b) { return where(gt(a, constant_like(a, 0)), constant_like(g, 0), g * a); }
};

#undef LOCKSTEP_FWD
#undef LOCKSTEP_VJP_OF

// Comparisons have IEEE meaning: NaN is unequal to everything. Every dtype has them.
#define LOCKSTEP_COMPARISON(Op, label, symbol)                \
  struct Op {                                                 \
    static constexpr std::string_view kName = label;          \
    template <class T>                                        \
    static LOCKSTEP_INLINE bool fwd(const T& a, const T& b) { \
      return a symbol b;                                      \
    }                                                         \
  };
LOCKSTEP_COMPARISON(Equal, "eq", ==)
LOCKSTEP_COMPARISON(NotEqual, "ne", !=)
LOCKSTEP_COMPARISON(Less, "lt", <)
LOCKSTEP_COMPARISON(LessEqual, "le", <=)
LOCKSTEP_COMPARISON(Greater, "gt", >)
LOCKSTEP_COMPARISON(GreaterEqual, "ge", >=)
#undef LOCKSTEP_COMPARISON

// The loops. All views of a call have one shape (a broadcast operand has stride 0) and one dtype;
// f16 and bf16 are computed in f32 and rounded once. Any strides; an output may be one of the
// inputs (same memory, same strides) or share no memory with them. A dtype that an op does not have
// is an Error(kInvalidArgument) that names it.

// y = Op(x).
template <class Op>
struct Unary {
  static void cpu(const View& x, const View& y);
  static void cuda(const View& x, const View& y);
};

// gx = g * Op'(x). Views that the rule does not use (kUsesX, kUsesY) may be any of that shape.
template <class Op>
struct UnaryVjp {
  static void cpu(const View& g, const View& x, const View& y, const View& gx);
  static void cuda(const View& g, const View& x, const View& y, const View& gx);
};

// y = Op(a, b).
template <class Op>
struct Binary {
  static void cpu(const View& a, const View& b, const View& y);
  static void cuda(const View& a, const View& b, const View& y);
};

// ga = g * dOp(a, b)/da, in the shape of y, not yet summed to a's.
template <class Op>
struct BinaryVjpA {
  static void cpu(const View& g, const View& a, const View& b, const View& y, const View& ga);
  static void cuda(const View& g, const View& a, const View& b, const View& y, const View& ga);
};

template <class Op>
struct BinaryVjpB {
  static void cpu(const View& g, const View& a, const View& b, const View& y, const View& gb);
  static void cuda(const View& g, const View& a, const View& b, const View& y, const View& gb);
};

// y (bool) = Op(a, b); a and b have one dtype.
template <class Op>
struct Compare {
  static void cpu(const View& a, const View& b, const View& y);
  static void cuda(const View& a, const View& b, const View& y);
};

// y = condition (bool) ? a : b, every dtype.
struct Where {
  static void cpu(const View& condition, const View& a, const View& b, const View& y);
  static void cuda(const View& condition, const View& a, const View& b, const View& y);
};

// Every op: X(struct, public function).
#define LOCKSTEP_UNARY_OPS(X) \
  X(Neg, neg)                 \
  X(Abs, abs)                 \
  X(Sign, sign)               \
  X(Exp, exp)                 \
  X(Log, log)                 \
  X(Log1p, log1p)             \
  X(Expm1, expm1)             \
  X(Sqrt, sqrt)               \
  X(Rsqrt, rsqrt)             \
  X(Sin, sin)                 \
  X(Cos, cos)                 \
  X(Tanh, tanh)               \
  X(Sigmoid, sigmoid)         \
  X(Relu, relu)               \
  X(Gelu, gelu)               \
  X(GeluTanh, gelu_tanh)      \
  X(Silu, silu)               \
  X(Softplus, softplus)       \
  X(Erf, erf)                 \
  X(Square, square)           \
  X(Reciprocal, reciprocal)

#define LOCKSTEP_BINARY_OPS(X) \
  X(Add, add)                  \
  X(Sub, sub)                  \
  X(Mul, mul)                  \
  X(Div, div)                  \
  X(Pow, pow)                  \
  X(Maximum, maximum)          \
  X(Minimum, minimum)          \
  X(LeakyRelu, leaky_relu)

#define LOCKSTEP_COMPARE_OPS(X) \
  X(Equal, eq)                  \
  X(NotEqual, ne)               \
  X(Less, lt)                   \
  X(LessEqual, le)              \
  X(Greater, gt)                \
  X(GreaterEqual, ge)

}  // namespace lockstep::kernels
