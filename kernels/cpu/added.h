#pragma once

#include <cstdint>
#include <type_traits>

#include "lockstep/kernels/cpu/blocks.h"

namespace lockstep::kernels {

// The sum of two elements, in their lane: integers wrap; bool: or.
template <class T>
LOCKSTEP_INLINE T added(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a | b;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

}  // namespace lockstep::kernels
