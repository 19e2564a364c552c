#pragma once

#include "lockstep/kernels/device.h"

namespace lockstep {

// The emulated devices that tests of several ranks are on.
inline constexpr Device kFirst = {DeviceType::kCuda, 0};
inline constexpr Device kSecond = {DeviceType::kCuda, 1};

}  // namespace lockstep
