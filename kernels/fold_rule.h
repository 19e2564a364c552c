#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/fold.h"
#include "lockstep/kernels/simd.h"

// What a fold does to an element, on the CPU and on CUDA alike. Library-internal.
namespace lockstep::kernels {

// How elements are joined; kAvgExact is the average over a power of two, which divides by scaling.
enum class Join { kSum, kAvgExact, kAvg, kMin, kMax, kProduct, kAnd, kOr };

// What an element looks like in memory to these loops: compilers vectorise numbers, not structs.
template <class T>
using Raw = std::conditional_t<is_reduced_float_v<T>, uint16_t,
                               std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>>;

template <class T, Join J>
constexpr auto partial_tag() {
  constexpr bool average = J == Join::kAvg || J == Join::kAvgExact;
  constexpr bool order = J == Join::kMin || J == Join::kMax;
  if constexpr (is_reduced_float_v<T> && !order) {
    return TypeTag<float>{};
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool> && average) {
    if constexpr (sizeof(T) == 1) return TypeTag<int32_t>{};
    if constexpr (sizeof(T) == 4) return TypeTag<int64_t>{};
    if constexpr (sizeof(T) == 8) return TypeTag<__int128>{};
  } else {
    return TypeTag<Raw<T>>{};
  }
}

template <class T>
LOCKSTEP_INLINE bool is_nan(T value) {
  return value != value;
}

// The value of an element as a number that can be compared and added; bool is 0 or 1.
//
// Half's conversions stand here in a form that takes a few vector instructions and no branch; they
// agree with Half for every value, except that a NaN loses its sign and payload when it is stored.
template <class T>
LOCKSTEP_INLINE auto value_of(Raw<T> raw) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return std::bit_cast<float>(uint32_t{raw} << 16);
  } else if constexpr (std::is_same_v<T, Half>) {
    const uint32_t sign = uint32_t{raw & 0x8000u} << 16;
    const uint32_t magnitude = raw & 0x7fffu;
    // A subnormal counts multiples of 2^-24. Floats that are subnormal themselves are avoided:
    // arithmetic on them is many times slower.
    const float counted = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
    const uint32_t small = std::bit_cast<uint32_t>(counted);
    const uint32_t normal = (magnitude << 13) + (magnitude < 0x7c00u ? 0x38000000u : 0x70000000u);
    return std::bit_cast<float>(sign | (magnitude < 0x400u ? small : normal));
  } else if constexpr (std::is_same_v<T, bool>) {
    return static_cast<uint8_t>(raw != 0);
  } else {
    return raw;
  }
}

template <class T>
LOCKSTEP_INLINE Raw<T> round_to(float value) {
  const uint32_t b = std::bit_cast<uint32_t>(value);
  if constexpr (std::is_same_v<T, BFloat16>) {
    const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>(is_nan(value) ? 0x7fc0u : rounded);
  } else {
    // The half is put together in the upper 16 bits: in the lower ones the compiler would see that
    // the upper are not wanted, and mix vectors of 16 and of 32 bits, which is slower.
    const uint32_t a = b & 0x7fffffffu;
    // Adding 0.5 lets the float unit round a subnormal half to a multiple of 2^-24.
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) << 16;
    const uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) << 3;
    const uint32_t finite = a < 0x38800000u ? small : normal;
    const uint32_t number = (b & 0x80000000u) | (a >= 0x47800000u ? 0x7c000000u : finite);
    return static_cast<uint16_t>((a > 0x7f800000u ? 0x7e000000u : number) >> 16);
  }
}

template <class T, Join J>
class FoldRule {
 public:
  static constexpr Join kJoin = J;
  using Element = T;
  using Input = Raw<T>;
  using Partial = typename decltype(partial_tag<T, J>())::type;

  explicit FoldRule(int ranks) : ranks_(ranks) {
    // With 2^k >= ranks, inputs times 2^-k cannot add up to more than their largest.
    const auto power = std::bit_ceil(static_cast<unsigned>(ranks));
    scale_ = 1.0 / power;
    divisor_ = static_cast<double>(ranks) / power;
  }

  double scale() const { return scale_; }
  double divisor() const { return divisor_; }

  LOCKSTEP_INLINE Partial begin(Input input) const {
    if constexpr (kOrder || std::is_same_v<T, bool>) {
      return input;
    } else if constexpr (kAverage && is_floating_v<T>) {
      return value_of<T>(input) * static_cast<Partial>(scale_);
    } else {
      return static_cast<Partial>(value_of<T>(input));
    }
  }

  LOCKSTEP_INLINE Partial join(Partial partial, Input input) const {
    if constexpr (std::is_same_v<T, bool>) {
      constexpr bool either = J == Join::kSum || J == Join::kMax || J == Join::kOr;
      const uint8_t a = value_of<T>(partial);
      const uint8_t b = value_of<T>(input);
      return static_cast<uint8_t>(either ? a | b : a & b);
    } else if constexpr (kOrder) {
      return in_order(value_of<T>(partial), value_of<T>(input)) ? partial : input;
    } else if constexpr (std::is_integral_v<T> && !kAverage) {
      using U = std::make_unsigned_t<std::common_type_t<T, int>>;
      const U a = static_cast<U>(partial);
      const U b = static_cast<U>(input);
      if constexpr (J == Join::kAnd) return static_cast<Partial>(a & b);
      if constexpr (J == Join::kOr) return static_cast<Partial>(a | b);
      return static_cast<Partial>(J == Join::kProduct ? a * b : a + b);
    } else {
      return J == Join::kProduct ? partial * begin(input) : partial + begin(input);
    }
  }

  LOCKSTEP_INLINE Input finish(Partial partial) const {
    if constexpr (std::is_same_v<T, bool>) {
      return value_of<T>(partial);
    } else if constexpr (kOrder) {
      return partial;
    } else if constexpr (is_floating_v<T>) {
      if constexpr (J == Join::kAvg) partial = partial / static_cast<Partial>(divisor_);
      if constexpr (is_reduced_float_v<T>) {
        return round_to<T>(partial);
      } else {
        return is_nan(partial) ? std::numeric_limits<T>::quiet_NaN() : partial;
      }
    } else if constexpr (kAverage) {
      return static_cast<Input>(partial / ranks_);
    } else {
      return partial;
    }
  }

 private:
  static constexpr bool kAverage = J == Join::kAvg || J == Join::kAvgExact;
  static constexpr bool kOrder = J == Join::kMin || J == Join::kMax;

  // Whether `a` stands before `b`, or is a NaN. Where only `b` is a NaN the comparison is false.
  template <class V>
  LOCKSTEP_INLINE static bool in_order(V a, V b) {
    const bool before = J == Join::kMin ? a < b : a > b;
    if constexpr (std::is_floating_point_v<V>) return before | is_nan(a);
    return before;
  }

  int ranks_;
  double scale_ = 1;
  double divisor_ = 1;
};

// Calls f with the rule of a spec.
template <class F>
decltype(auto) visit_fold_rule(const FoldSpec& spec, const F& f) {
  return visit_dtype(spec.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (spec.op) {
      case FoldOp::kSum:
        return f(FoldRule<T, Join::kSum>(spec.ranks));
      case FoldOp::kAvg:
        if (std::has_single_bit(static_cast<unsigned>(spec.ranks)) && is_floating_v<T>) {
          return f(FoldRule<T, Join::kAvgExact>(spec.ranks));
        }
        return f(FoldRule<T, Join::kAvg>(spec.ranks));
      case FoldOp::kMin:
        return f(FoldRule<T, Join::kMin>(spec.ranks));
      case FoldOp::kMax:
        return f(FoldRule<T, Join::kMax>(spec.ranks));
      case FoldOp::kProduct:
        return f(FoldRule<T, Join::kProduct>(spec.ranks));
      case FoldOp::kAnd:
        if constexpr (!is_floating_v<T>) return f(FoldRule<T, Join::kAnd>(spec.ranks));
        break;
      case FoldOp::kOr:
        if constexpr (!is_floating_v<T>) return f(FoldRule<T, Join::kOr>(spec.ranks));
        break;
    }
    if (!is_defined(spec.op, spec.dtype)) {
      throw Error(ErrorCode::kInvalidArgument, "fold", "\"and\" and \"or\" are not for floats");
    }
    throw Error(ErrorCode::kInvalidArgument, "fold", "a value that is not a FoldOp");
  });
}

}  // namespace lockstep::kernels
