#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

// CUDA's types of 16 bits. Each operation is rounded once, to nearest even, as on a device. What
// one type has the other has, and pairs of them, by CUDA's names for each.
namespace simt {

template <int kMantissa, int kBias>
struct Float16 {
  uint16_t bits;

  Float16() = default;
  Float16(double value) : bits(bits_of(std::fabs(value))) {
    if (std::signbit(value)) bits |= 0x8000u;
  }
  operator float() const {
    const float size = size_of(bits & 0x7fffu);
    return (bits & 0x8000u) != 0 ? -size : size;
  }

  // In double, for an exact product of two.
  friend Float16 operator+(Float16 a, Float16 b) { return double{a} + double{b}; }
  friend Float16 operator-(Float16 a, Float16 b) { return double{a} - double{b}; }
  friend Float16 operator*(Float16 a, Float16 b) { return double{a} * double{b}; }
  friend Float16 operator/(Float16 a, Float16 b) { return double{a} / double{b}; }
  friend Float16 operator-(Float16 a) { return -double{a}; }
  Float16& operator+=(Float16 b) { return *this = *this + b; }
  Float16& operator-=(Float16 b) { return *this = *this - b; }
  Float16& operator*=(Float16 b) { return *this = *this * b; }
  Float16& operator/=(Float16 b) { return *this = *this / b; }

 private:
  static constexpr unsigned kOne = 1u << kMantissa;
  static constexpr unsigned kInfinity = (2 * kBias + 1) * kOne;

  static uint16_t bits_of(double size) {
    if (std::isnan(size)) return 0x7fff;
    const int exponent = size == 0 ? 1 - kBias : std::max(std::ilogb(size), 1 - kBias);
    if (exponent > kBias) return kInfinity;
    // A mantissa that is rounded up to 2 carries into the exponent, and may make infinity there.
    const auto mantissa = static_cast<unsigned>(std::lrint(std::ldexp(size, kMantissa - exponent)));
    return static_cast<uint16_t>(static_cast<unsigned>(exponent + kBias - 1) * kOne + mantissa);
  }
  static float size_of(unsigned magnitude) {
    if (magnitude >= kInfinity) return magnitude > kInfinity ? NAN : INFINITY;
    const int exponent = static_cast<int>(magnitude / kOne);
    const unsigned mantissa = magnitude % kOne + (exponent == 0 ? 0 : kOne);
    return std::ldexp(static_cast<float>(mantissa), std::max(exponent, 1) - kBias - kMantissa);
  }
};

template <class T>
struct alignas(4) Pair16 {
  T x, y;
  friend Pair16 operator+(Pair16 a, Pair16 b) { return {a.x + b.x, a.y + b.y}; }
  friend Pair16 operator-(Pair16 a, Pair16 b) { return {a.x - b.x, a.y - b.y}; }
  friend Pair16 operator*(Pair16 a, Pair16 b) { return {a.x * b.x, a.y * b.y}; }
  friend Pair16 operator/(Pair16 a, Pair16 b) { return {a.x / b.x, a.y / b.y}; }
};

}  // namespace simt

#define SIMT_16_BITS(T, T2)                                                                      \
  inline T __hadd(T a, T b) { return a + b; }                                                    \
  inline T __hsub(T a, T b) { return a - b; }                                                    \
  inline T __hmul(T a, T b) { return a * b; }                                                    \
  inline T __hdiv(T a, T b) { return a / b; }                                                    \
  inline T __hfma(T a, T b, T c) { return double{a} * double{b} + double{c}; }                   \
  inline T __hneg(T a) { return -a; }                                                            \
  inline T __habs(T a) { return std::fabs(double{a}); }                                          \
  inline T __hmin(T a, T b) { return std::fmin(double{a}, double{b}); }                          \
  inline T __hmax(T a, T b) { return std::fmax(double{a}, double{b}); }                          \
  inline bool __heq(T a, T b) { return float{a} == float{b}; }                                   \
  inline bool __hne(T a, T b) { return float{a} != float{b}; }                                   \
  inline bool __hlt(T a, T b) { return float{a} < float{b}; }                                    \
  inline bool __hle(T a, T b) { return float{a} <= float{b}; }                                   \
  inline bool __hgt(T a, T b) { return float{a} > float{b}; }                                    \
  inline bool __hge(T a, T b) { return float{a} >= float{b}; }                                   \
  inline bool __hisnan(T a) { return std::isnan(float{a}); }                                     \
  inline T2 __hadd2(T2 a, T2 b) { return a + b; }                                                \
  inline T2 __hsub2(T2 a, T2 b) { return a - b; }                                                \
  inline T2 __hmul2(T2 a, T2 b) { return a * b; }                                                \
  inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  inline float __low2float(T2 a) { return a.x; }                                                 \
  inline float __high2float(T2 a) { return a.y; }
