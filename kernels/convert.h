#pragma once

#include <limits>
#include <type_traits>

#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/simd.h"

namespace lockstep::kernels {

// One element's conversion, as Copy (kernels/copy.h) has it, between types that a processor
// computes in.
template <class To, class From>
LOCKSTEP_INLINE To convert(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != From{0};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // The largest integer may round up to a float that does not fit: compare with >=.
    constexpr auto low = static_cast<From>(std::numeric_limits<To>::min());
    constexpr auto high = static_cast<From>(std::numeric_limits<To>::max());
    if (!(x > low)) return x == x ? std::numeric_limits<To>::min() : To{0};
    return x >= high ? std::numeric_limits<To>::max() : static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// The element of an array of T that a number becomes, as Fill (kernels/copy.h) has it.
template <class T, class Number>
T element_of(Number value) {
  if constexpr (is_reduced_float_v<T>) {
    return T(static_cast<float>(value));
  } else {
    return convert<T>(value);
  }
}

}  // namespace lockstep::kernels
