#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/simd.h"

// How numbers are made of Philox's 64 bits. All arithmetic is additions, products, quotients and
// square roots in a fixed order and without fused multiply-adds, so that every processor and every
// GPU gives the same bits.
namespace lockstep::kernels {

// The C++ type that an element is computed in.
template <class T>
using Computed = std::conditional_t<is_reduced_float_v<T>, float, T>;

// The digits of T's significand, which is how many bits of a uniform number it can hold.
template <class T>
constexpr int significand_bits() {
  if constexpr (std::is_same_v<T, Half>) return 11;
  if constexpr (std::is_same_v<T, BFloat16>) return 8;
  return std::numeric_limits<Computed<T>>::digits;
}

template <class T>
LOCKSTEP_INLINE T uniform(uint64_t bits) {
  constexpr int kBits = significand_bits<T>();
  constexpr auto kScale = static_cast<Computed<T>>(1.0 / static_cast<double>(uint64_t{1} << kBits));
  if constexpr (kBits > 31) {
    return static_cast<Computed<T>>(static_cast<int64_t>(bits >> (64 - kBits))) * kScale;
  } else {
    return T(static_cast<Computed<T>>(static_cast<int32_t>(bits >> (64 - kBits))) * kScale);
  }
}

// [1, 2) in steps of 2^-52, by the upper bits.
LOCKSTEP_INLINE double one_to_two(uint64_t bits) {
  return std::bit_cast<double>((bits >> 12) | 0x3ff0000000000000u);
}

// log(u) for u in [2^-53, 1], by the series of 2 atanh(s) with s = (m - 1) / (m + 1), where m is
// u's mantissa within [sqrt(1/2), sqrt(2)) and s at most 0.172: the first term left out is below
// 2^-64.
LOCKSTEP_INLINE double log_of(double u) {
  const auto bits = std::bit_cast<uint64_t>(u);
  const uint64_t offset = bits - 0x3fe6a09e667f3bcdu;  // sqrt(1/2)
  const auto exponent = static_cast<int32_t>(static_cast<uint32_t>(offset >> 32)) >> 20;
  const double m = std::bit_cast<double>((offset & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double p = 1.0 / 23;
  p = p * z + 1.0 / 21;
  p = p * z + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  return exponent * 0.69314718055994531 + 2 * s * (1 + z * p);
}

struct CosSin {
  double cos;
  double sin;
};

// The cosine and sine of a / 2^64 turns, from their series at the nearest of the four
// axes, within an eighth of a turn (0.785).
LOCKSTEP_INLINE CosSin cos_sin(uint64_t a) {
  const uint64_t quarter = ((a >> 61) + 1) >> 1;  // the nearest axis, 0 to 4
  const double turn = one_to_two(a) - 1;
  const double r =
      (turn - static_cast<double>(static_cast<int32_t>(quarter)) * 0.25) * 6.2831853071795865;
  const double z = r * r;
  double s = 1.0 / 355687428096000;
  s = s * z - 1.0 / 1307674368000;
  s = s * z + 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  const double sine = r + r * (z * s);
  double c = -1.0 / 6402373705728000;
  c = c * z + 1.0 / 20922789888000;
  c = c * z - 1.0 / 87178291200;
  c = c * z + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  const double cosine = 1 + z * c;
  const bool odd = (quarter & 1) != 0;
  const double x = odd ? sine : cosine;
  const double y = odd ? cosine : sine;
  const bool x_negative = ((quarter + 1) & 2) != 0;
  const bool y_negative = (quarter & 2) != 0;
  return {x_negative ? -x : x, y_negative ? -y : y};
}

struct NormalPair {
  double first;
  double second;
};

// Two independent normal numbers (Box and Muller, 1958).
LOCKSTEP_INLINE NormalPair normal_pair(uint64_t bits0, uint64_t bits1) {
  const double u = 2 - one_to_two(bits0);  // (0, 1]
  const double radius = __builtin_sqrt(-2 * log_of(u));
  const CosSin angle = cos_sin(bits1);
  return {radius * angle.cos, radius * angle.sin};
}

// An integer of `span` from `low` on, by the high half of a product.
LOCKSTEP_INLINE int64_t integer_in(uint64_t bits, int64_t low, uint64_t span) {
  const auto product = static_cast<unsigned __int128>(bits) * span;
  return static_cast<int64_t>(static_cast<uint64_t>(low) + static_cast<uint64_t>(product >> 64));
}

// Numbers below it are hits of probability p; where p is 1, which 64 bits do not hold, all are.
struct Threshold {
  bool always;
  uint64_t below;
};
inline Threshold threshold_of(double p) {
  return {p == 1, p == 1 ? 0 : static_cast<uint64_t>(p * 0x1p64)};
}

}  // namespace lockstep::kernels
