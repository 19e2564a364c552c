#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "lockstep/kernels/simd.h"

namespace lockstep::kernels {

// Functions for the inside of vectorised loops. The float ones of exp, expm1, log, log1p, tanh,
// sigmoid and erf are straight-line arithmetic, which compilers turn into vectors: within 2 units
// in the last place (3 for expm1, log1p and sigmoid) over the whole range, subnormals, infinities
// and NaN included. They use no fused multiply-add, so that every processor gives the same bits.
// The polynomials are minimax fits made for this file (Remez's exchange), errors below 1e-8. The
// double ones, and sin, cos and pow, are the C library's.

LOCKSTEP_INLINE float abs(float x) { return __builtin_fabsf(x); }
LOCKSTEP_INLINE double abs(double x) { return __builtin_fabs(x); }

LOCKSTEP_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
LOCKSTEP_INLINE double sqrt(double x) { return __builtin_sqrt(x); }

LOCKSTEP_INLINE float rsqrt(float x) { return 1.0f / sqrt(x); }
LOCKSTEP_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }

LOCKSTEP_INLINE float sin(float x) { return std::sin(x); }
LOCKSTEP_INLINE double sin(double x) { return std::sin(x); }

LOCKSTEP_INLINE float cos(float x) { return std::cos(x); }
LOCKSTEP_INLINE double cos(double x) { return std::cos(x); }

LOCKSTEP_INLINE float pow(float a, float b) { return std::pow(a, b); }
LOCKSTEP_INLINE double pow(double a, double b) { return std::pow(a, b); }

// -1, 0 or 1; NaN for NaN.
template <class T>
LOCKSTEP_INLINE T sign(T x) {
  const T nonzero = x < T{0} ? T{-1} : T{1};
  return x == T{0} ? T{0} : (x != x ? x : nonzero);
}

namespace vector_math_internal {

// Adding this to a float of moderate size rounds it to an integer, which then stands in the low
// bits.
inline constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

// 2^(n / 2) * 2^(n - n / 2) times x: two steps, so that overflow and subnormal results come out of
// the multiplication. n is within [-252, 254] where it matters.
LOCKSTEP_INLINE float scale(float x, int32_t n) {
  const int32_t half = n >> 1;
  const auto power = [](int32_t k) LOCKSTEP_INLINE_LAMBDA {
    return std::bit_cast<float>((static_cast<uint32_t>(k) + 127u) << 23);
  };
  return x * power(half) * power(n - half);
}

// x = n log 2 + r with |r| <= 0.35; the two parts of log 2 make n * kLog2High exact.
inline constexpr float kLog2High = 0.693359375f;
inline constexpr float kLog2Low = -2.12194440e-4f;

struct Reduced {
  int32_t n;
  float n_float;
  float r;
};

LOCKSTEP_INLINE Reduced reduce(float x) {
  const float shifted = x * 1.44269504f + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * kLog2High) - n * kLog2Low;
  const auto bits = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRounder);
  return {static_cast<int32_t>(bits), n, r};
}

// exp(r) - 1 - r for |r| <= 0.35.
LOCKSTEP_INLINE float exp_tail(float r) {
  float p = 0.00139517194f;
  p = p * r + 0.0083695982f;
  p = p * r + 0.0416661873f;
  p = p * r + 0.166665129f;
  p = p * r + 0.50000001f;
  return p * r * r;
}

// (log(1 + f) - f + f^2 / 2) / f^3 for 1 + f within [sqrt(1/2), sqrt(2)].
LOCKSTEP_INLINE float log_tail(float f) {
  float p = 0.0691676432f;
  p = p * f - 0.1179172f;
  p = p * f + 0.118733637f;
  p = p * f - 0.12384069f;
  p = p * f + 0.142185766f;
  p = p * f - 0.166692634f;
  p = p * f + 0.200022306f;
  p = p * f - 0.249999864f;
  p = p * f + 0.333333104f;
  return p;
}

LOCKSTEP_INLINE float clamp_keep_nan(float x, float low, float high) {
  const float a = x < low ? low : x;
  return a > high ? high : a;
}

}  // namespace vector_math_internal

LOCKSTEP_INLINE float exp(float x) {
  const auto c =
      vector_math_internal::reduce(vector_math_internal::clamp_keep_nan(x, -105.0f, 90.0f));
  return vector_math_internal::scale(1.0f + (c.r + vector_math_internal::exp_tail(c.r)), c.n);
}
LOCKSTEP_INLINE double exp(double x) { return std::exp(x); }

// exp(x) - 1, without cancellation: 2^n (exp(r) - 1) + (2^n - 1).
LOCKSTEP_INLINE float expm1(float x) {
  const auto c =
      vector_math_internal::reduce(vector_math_internal::clamp_keep_nan(x, -30.0f, 90.0f));
  const float em1 = c.r + vector_math_internal::exp_tail(c.r);
  const float moderate = c.n < 127 ? vector_math_internal::scale(1.0f, c.n) : 1.0f;
  const float sum = em1 * moderate + (moderate - 1.0f);
  const float small = c.n == 0 ? em1 : sum;  // keeps -0 and subnormals
  return c.n < 127 ? (x == 0.0f ? x : small) : vector_math_internal::scale(1.0f + em1, c.n);
}
LOCKSTEP_INLINE double expm1(double x) { return std::expm1(x); }

LOCKSTEP_INLINE float log(float x) {
  const bool subnormal = x < 0x1p-126f;
  const float scaled = subnormal ? x * 0x1p24f : x;
  const auto bits = std::bit_cast<uint32_t>(scaled);
  // 0x3f3504f3 is sqrt(1/2): the mantissa is taken from [sqrt(1/2), sqrt(2)).
  const uint32_t offset = bits - 0x3f3504f3u;
  const auto exponent = static_cast<int32_t>(offset) >> 23;
  const float m = std::bit_cast<float>((offset & 0x007fffffu) + 0x3f3504f3u);
  const float e = static_cast<float>(exponent) - (subnormal ? 24.0f : 0.0f);
  const float f = m - 1.0f;
  const float tail = f * f * f * vector_math_internal::log_tail(f) - 0.5f * f * f;
  const float finite =
      e * vector_math_internal::kLog2High + (f + (tail + e * vector_math_internal::kLog2Low));
  const float zero_or_less = x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
  const float positive = x < __builtin_inff() ? finite : x;  // infinity, NaN
  return x <= 0.0f ? zero_or_less : positive;
}
LOCKSTEP_INLINE double log(double x) { return std::log(x); }

// log(u) corrected for what rounding 1 + x to u lost: (x - (u - 1)) / u.
LOCKSTEP_INLINE float log1p(float x) {
  const float u = 1.0f + x;
  const float lost = x - (u - 1.0f);
  const float corrected = log(u) + lost / u;
  const float bounded = u < __builtin_inff() ? corrected : u;  // infinity, NaN
  return abs(x) < 1e-5f ? x - 0.5f * x * x : (x <= -1.0f ? log(u) : bounded);
}
LOCKSTEP_INLINE double log1p(double x) { return std::log1p(x); }

LOCKSTEP_INLINE float sigmoid(float x) {
  const float e = exp(-abs(x));
  const float s = 1.0f / (1.0f + e);
  return x < 0.0f ? e * s : s;
}
LOCKSTEP_INLINE double sigmoid(double x) {
  const double e = std::exp(-abs(x));
  const double s = 1.0 / (1.0 + e);
  return x < 0.0 ? e * s : s;
}

LOCKSTEP_INLINE float tanh(float x) {
  const float z = x * x;
  float p = 0.00213929305f;
  p = p * z - 0.0081743185f;
  p = p * z + 0.0216999023f;
  p = p * z - 0.0539467166f;
  p = p * z + 0.133332067f;
  p = p * z - 0.333333309f;
  const float small = x + x * (z * p);
  const float large = 1.0f - 2.0f / (exp(2.0f * abs(x)) + 1.0f);
  return __builtin_copysignf(abs(x) < 0.625f ? small : large, x);
}
LOCKSTEP_INLINE double tanh(double x) { return std::tanh(x); }

// A polynomial for |x| < 1; beyond, 1 - exp(p(|x|)) with p = log(1 - erf).
LOCKSTEP_INLINE float erf(float x) {
  const float z = x * x;
  float p = 7.88912316e-05f;
  p = p * z - 0.000802084237f;
  p = p * z + 0.00518953546f;
  p = p * z - 0.0268544447f;
  p = p * z + 0.112836002f;
  p = p * z - 0.376126271f;
  p = p * z + 0.128379167f;  // 2 / sqrt(pi) - 1
  const float t = vector_math_internal::clamp_keep_nan(abs(x), 0.0f, 4.0f);
  float q = 0.000186379172f;
  q = q * t - 0.00294765812f;
  q = q * t + 0.0218380633f;
  q = q * t - 0.103106753f;
  q = q * t - 0.638144834f;
  q = q * t - 1.12708919f;
  q = q * t - 0.000341523278f;
  const float small = x + x * p;
  return __builtin_copysignf(abs(x) < 1.0f ? small : 1.0f - exp(q), x);
}
LOCKSTEP_INLINE double erf(double x) { return std::erf(x); }

}  // namespace lockstep::kernels
