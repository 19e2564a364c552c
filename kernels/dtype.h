#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "lockstep/kernels/error.h"

namespace lockstep {

// IEEE 754 binary16, held as bits; arithmetic happens in float. Conversion from float rounds to
// nearest even, and carries NaN, infinities and subnormals. constexpr, so that nvcc takes it for
// device code too.
struct Half {
  uint16_t bits = 0;

  Half() = default;
  constexpr explicit Half(float value) : bits(from_float(value)) {}
  constexpr explicit operator float() const { return to_float(bits); }

  static constexpr uint16_t from_float(float value);
  static constexpr float to_float(uint16_t bits);
};

// The upper half of an IEEE 754 binary32. Conversion from float rounds to nearest even.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  constexpr explicit BFloat16(float value) : bits(from_float(value)) {}
  constexpr explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }

  static constexpr uint16_t from_float(float value) {
    const uint32_t b = std::bit_cast<uint32_t>(value);
    if ((b & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((b >> 16) | 0x40u);
    return static_cast<uint16_t>((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
  }
};

constexpr uint16_t Half::from_float(float value) {
  const uint32_t b = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (b >> 16) & 0x8000u;
  const uint32_t a = b & 0x7fffffffu;
  if (a >= 0x47800000u) {  // 65536 and above, infinity, NaN
    const bool nan = a > 0x7f800000u;
    return static_cast<uint16_t>(sign | (nan ? 0x7e00u | ((a >> 13) & 0x3ffu) : 0x7c00u));
  }
  if (a < 0x38800000u) {
    // Below 2^-14 the result is subnormal; adding 0.5 lets the float unit round to 2^-24.
    const float shifted = std::bit_cast<float>(a) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

constexpr float Half::to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude < 0x400u) {  // subnormal: magnitude * 2^-24, exact in float
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

// The element types of tensors and collectives. The numbers are part of the checkpoint format and
// of the wire: never reorder them.
enum class DType : uint8_t {
  kF32 = 0,
  kF64 = 1,
  kF16 = 2,
  kBF16 = 3,
  kI64 = 4,
  kI32 = 5,
  kU8 = 6,
  kBool = 7,
  kI8 = 8,
};

inline constexpr int kDTypeCount = 9;

template <class T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>{}) with the C++ type of `dtype`; bool elements are `bool`.
// Throws Error(kInvalidArgument) for a value that is not a DType.
template <class F>
constexpr decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(TypeTag<float>{});
    case DType::kF64:
      return f(TypeTag<double>{});
    case DType::kF16:
      return f(TypeTag<Half>{});
    case DType::kBF16:
      return f(TypeTag<BFloat16>{});
    case DType::kI64:
      return f(TypeTag<int64_t>{});
    case DType::kI32:
      return f(TypeTag<int32_t>{});
    case DType::kU8:
      return f(TypeTag<uint8_t>{});
    case DType::kBool:
      return f(TypeTag<bool>{});
    case DType::kI8:
      return f(TypeTag<int8_t>{});
  }
  throw Error(ErrorCode::kInvalidArgument, "dtype", "a value that is not a DType");
}

// Like visit_dtype, for the floating types alone; any other dtype is an error that names `op`.
template <class F>
constexpr decltype(auto) visit_floating(DType dtype, std::string_view op, F&& f);

constexpr size_t size_of(DType dtype) {
  return visit_dtype(dtype, [](auto tag) { return sizeof(typename decltype(tag)::type); });
}

// "f32", "f64", "f16", "bf16", "i64", "i32", "u8", "bool", "i8".
std::string_view name(DType dtype);

// Reads the names above and the common long ones ("float", "float32", "double", "half", …).
// Throws Error(kInvalidArgument) that lists the names.
DType parse_dtype(std::string_view text);

constexpr bool is_floating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

template <class T>
inline constexpr bool is_reduced_float_v = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <class T>
inline constexpr bool is_floating_v = std::is_floating_point_v<T> || is_reduced_float_v<T>;

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
  if constexpr (std::is_same_v<T, Half>) return DType::kF16;
  if constexpr (std::is_same_v<T, BFloat16>) return DType::kBF16;
  if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, long long>) return DType::kI64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kI32;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::kU8;
  if constexpr (std::is_same_v<T, bool>) return DType::kBool;
  if constexpr (std::is_same_v<T, int8_t>) return DType::kI8;
}

// The type that sums of T are taken in: float for the 16-bit floats, int64_t for integers and
// bool, T for the rest.
template <class T>
using Accumulator = std::conditional_t<is_reduced_float_v<T>, float,
                                       std::conditional_t<std::is_floating_point_v<T>, T, int64_t>>;

template <class F>
constexpr decltype(auto) visit_floating(DType dtype, std::string_view op, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(TypeTag<float>{});
    case DType::kF64:
      return f(TypeTag<double>{});
    case DType::kF16:
      return f(TypeTag<Half>{});
    case DType::kBF16:
      return f(TypeTag<BFloat16>{});
    default:
      throw Error(ErrorCode::kInvalidArgument, op,
                  std::string("want a floating dtype, got ").append(name(dtype)));
  }
}

}  // namespace lockstep
