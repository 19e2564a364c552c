#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "lockstep/kernels/simd.h"

// What block_quant.h says of one number, for every device.
namespace lockstep::kernels {

// The greater magnitude, or NaN where one is.
LOCKSTEP_INLINE float greater_magnitude(float a, float b) { return a > b || a != a ? a : b; }

LOCKSTEP_INLINE float quant_scale(float greatest) {
  return greatest <= std::numeric_limits<float>::max() ? greatest / 127
                                                       : std::numeric_limits<float>::quiet_NaN();
}

// The code of a value, which becomes what that loses.
LOCKSTEP_INLINE int8_t quant_code(float& value, float scale) {
  // A magnitude so small that a 127th of it is 0 has no code. Division may round to just above 127.
  const float exact = scale > 0 ? value / scale : 0;
  const float near = std::nearbyint(exact);
  const float code = near > 127 ? 127 : near < -127 ? -127 : near;
  value = scale >= 0 ? value - code * scale : 0;
  return static_cast<int8_t>(code);
}

}  // namespace lockstep::kernels
