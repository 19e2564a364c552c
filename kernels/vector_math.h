#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "lockstep/kernels/simd.h"

namespace lockstep::kernels {

// Functions for the inside of vectorised loops. The float ones of exp, expm1, log, log1p, tanh,
// sigmoid and erf are straight-line arithmetic, which compilers turn into vectors: within 2 units
// in the last place (3 for expm1, log1p and sigmoid) over the whole range, subnormals, infinities
// and NaN included. Where they fuse a multiplication with an addition they say so (fma), so that
// every processor gives the same bits: one without such an instruction computes it in the C
// library, a call for each element. The polynomials are minimax fits made for this file (Remez's
// exchange), errors below 1e-8. The double ones, and sin, cos and pow, are the C library's.

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

// a b + c, rounded once.
LOCKSTEP_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// -1, 0 or 1; NaN for NaN.
template <class T>
LOCKSTEP_INLINE T sign(T x) {
  const T nonzero = x < T{0} ? T{-1} : T{1};
  return x == T{0} ? T{0} : (x != x ? x : nonzero);
}

namespace vector_math_internal {

// Bounds of arguments. Of a bound that it knows, GCC makes a case of its own with a result that it
// knows, and of that masks: nine instructions for two.
#ifdef __CUDACC__
constexpr float kExpLowest = -105.0f;
constexpr float kExpm1Lowest = -30.0f;
constexpr float kExpHighest = 90.0f;
constexpr float kTanhHighest = 10.0f;
constexpr float kErfHighest = 4.0f;
#else
extern const float kExpLowest;    // below, exp is 0
extern const float kExpm1Lowest;  // below, expm1 is -1
extern const float kExpHighest;   // above, exp is infinite
extern const float kTanhHighest;  // above, tanh is 1
extern const float kErfHighest;   // above, erf is 1
#endif

LOCKSTEP_INLINE float at_least(float x, float low) { return x < low ? low : x; }    // keeps NaN
LOCKSTEP_INLINE float at_most(float x, float high) { return x > high ? high : x; }  // keeps NaN

// Adding this to a float of moderate size rounds it to an integer, which then stands in the low
// bits.
inline constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

// x = n log 2 + r with |r| <= 0.35; log 2 is the sum of two parts, since n times its rounded value
// alone would be wrong by up to 2e-7.
inline constexpr float kLog2High = 0.693359375f;
inline constexpr float kLog2Low = -2.12194440e-4f;

// The low 22 bits of `bits` are n + bias.
struct Reduced {
  float n;
  float r;
  uint32_t bits;
};

template <int bias>
LOCKSTEP_INLINE Reduced reduce(float x) {
  constexpr float kBiased = kRounder + static_cast<float>(bias);
  const float shifted = fma(x, 1.44269504f, kBiased);
  const float n = shifted - kBiased;
  return {n, fma(n, -kLog2Low, fma(n, -kLog2High, x)), std::bit_cast<uint32_t>(shifted)};
}

// 2^(k - 127) for k within [0, 255), where higher bits but the sign's are 0.
LOCKSTEP_INLINE float power_of_two(uint32_t k) { return std::bit_cast<float>(k << 23); }

// x 2^n, of n + 254 in bits: two steps, so that overflow and subnormal results come out of the
// multiplication. n is within [-252, 254] where it matters.
inline constexpr int kScaleBias = 254;
LOCKSTEP_INLINE float scale(float x, uint32_t bits) {
  const uint32_t half = bits >> 1;
  return x * power_of_two(half) * power_of_two(bits - half);
}

// What is wanted often sums its polynomial in pairs, one for each power of the square: a chain of
// dependent operations would be longer than what a processor looks ahead.

// exp(r) - 1 for |r| <= 0.35.
LOCKSTEP_INLINE float small_expm1(float r) {
  const float r2 = r * r;
  const float high = fma(r2, 0.00139517194f, fma(r, 0.0083695982f, 0.0416661873f));
  return fma(r2, fma(r2, high, fma(r, 0.166665129f, 0.50000001f)), r);
}

// (log(1 + f) - f + f^2 / 2) / f^3 for 1 + f within [sqrt(1/2), sqrt(2)].
LOCKSTEP_INLINE float log_tail(float f) {
  float p = 0.0691676432f;
  p = fma(p, f, -0.1179172f);
  p = fma(p, f, 0.118733637f);
  p = fma(p, f, -0.12384069f);
  p = fma(p, f, 0.142185766f);
  p = fma(p, f, -0.166692634f);
  p = fma(p, f, 0.200022306f);
  p = fma(p, f, -0.249999864f);
  p = fma(p, f, 0.333333104f);
  return p;
}

// exp(x) for |x| < 80 or NaN.
LOCKSTEP_INLINE float moderate_exp(float x) {
  const auto c = reduce<127>(x);
  const float power = power_of_two(c.bits);
  return fma(small_expm1(c.r), power, power);
}

}  // namespace vector_math_internal

LOCKSTEP_INLINE float exp(float x) {
  using namespace vector_math_internal;  // NOLINT
  const auto c = reduce<kScaleBias>(at_most(at_least(x, kExpLowest), kExpHighest));
  return scale(1.0f + small_expm1(c.r), c.bits);
}
LOCKSTEP_INLINE double exp(double x) { return std::exp(x); }

// exp(x) for x of at most 70 or NaN: the same bits with fewer instructions, for n + 25 leaves the
// exponents of normal floats only where the result is 0: the last multiplication alone rounds.
LOCKSTEP_INLINE float exp_below_70(float x) {
  using namespace vector_math_internal;  // NOLINT
  const auto c = reduce<127 + 25>(at_least(x, kExpLowest));
  const float power = power_of_two(c.bits);
  return fma(small_expm1(c.r), power, power) * 0x1p-25f;
}
LOCKSTEP_INLINE double exp_below_70(double x) { return std::exp(x); }

// exp(x) - 1, without cancellation: 2^n (exp(r) - 1) + (2^n - 1).
LOCKSTEP_INLINE float expm1(float x) {
  using namespace vector_math_internal;  // NOLINT
  const auto c = reduce<kScaleBias>(at_most(at_least(x, kExpm1Lowest), kExpHighest));
  const float em1 = small_expm1(c.r);
  const float moderate = c.n < 127.0f ? scale(1.0f, c.bits) : 1.0f;
  const float sum = fma(em1, moderate, moderate - 1.0f);
  const float small = c.n == 0.0f ? em1 : sum;  // keeps -0 and subnormals
  return c.n < 127.0f ? (x == 0.0f ? x : small) : scale(1.0f + em1, c.bits);
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
  const float f2 = f * f;
  const float tail = fma(f2 * f, vector_math_internal::log_tail(f), -0.5f * f2);
  const float finite =
      fma(e, vector_math_internal::kLog2High, f + fma(e, vector_math_internal::kLog2Low, tail));
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
  return abs(x) < 1e-5f ? fma(-0.5f * x, x, x) : (x <= -1.0f ? log(u) : bounded);
}
LOCKSTEP_INLINE double log1p(double x) { return std::log1p(x); }

LOCKSTEP_INLINE float sigmoid(float x) {
  const float e = exp_below_70(-abs(x));
  const float s = 1.0f / (1.0f + e);
  return x < 0.0f ? e * s : s;
}
LOCKSTEP_INLINE double sigmoid(double x) {
  const double e = std::exp(-abs(x));
  const double s = 1.0 / (1.0 + e);
  return x < 0.0 ? e * s : s;
}

LOCKSTEP_INLINE float tanh(float x) {
  using namespace vector_math_internal;  // NOLINT
  const float z = x * x;
  const float z2 = z * z;
  const float high =
      fma(z2, fma(z, 0.00213929305f, -0.0081743185f), fma(z, 0.0216999023f, -0.0539467166f));
  const float p = fma(z2, high, fma(z, 0.133332067f, -0.333333309f));
  const float small = fma(x, z * p, x);
  const float large = 1.0f - 2.0f / (moderate_exp(2.0f * at_most(abs(x), kTanhHighest)) + 1.0f);
  return __builtin_copysignf(abs(x) < 0.625f ? small : large, x);
}
LOCKSTEP_INLINE double tanh(double x) { return std::tanh(x); }

// log(1 - erf(|x|)) for |x| from 1 on, and up to 4; erf takes it from there on as 1.
LOCKSTEP_INLINE float log_erfc(float x) {
  const float t = vector_math_internal::at_most(abs(x), vector_math_internal::kErfHighest);
  const float t2 = t * t;
  const float high = fma(t2, 0.000186379172f, fma(t, -0.00294765812f, 0.0218380633f));
  const float middle = fma(t2, high, fma(t, -0.103106753f, -0.638144834f));
  return fma(t2, middle, fma(t, -1.12708919f, -0.000341523278f));
}

// erf(x) from log_erfc(x), or from a polynomial for |x| < 1.
LOCKSTEP_INLINE float erf_from(float x, float log_erfc_x) {
  const float z = x * x;
  const float z2 = z * z;
  const float high = fma(z2, 7.88912316e-05f, fma(z, -0.000802084237f, 0.00518953546f));
  const float middle = fma(z2, high, fma(z, -0.0268544447f, 0.112836002f));
  const float p = fma(z2, middle, fma(z, -0.376126271f, 0.128379167f));  // 2 / sqrt(pi) - 1 at 0
  const float small = fma(x, p, x);
  const float large = 1.0f - vector_math_internal::moderate_exp(log_erfc_x);
  return __builtin_copysignf(abs(x) < 1.0f ? small : large, x);
}
LOCKSTEP_INLINE float erf(float x) { return erf_from(x, log_erfc(x)); }
LOCKSTEP_INLINE double erf(double x) { return std::erf(x); }

}  // namespace lockstep::kernels
