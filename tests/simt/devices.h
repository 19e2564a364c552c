#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/kernels/device.h"
#include "simt/simt.h"

namespace lockstep {

// The devices that tests of several ranks are on: the same one where a machine has no other.
inline constexpr Device kFirst = {DeviceType::kCuda, 0};
inline const Device kSecond = {DeviceType::kCuda, simt::device_count() > 1 ? 1 : 0};

// The `index`-th of some tests that go this way on these devices. On one device, their numbers tell
// no two of them apart.
inline std::string name_of_way(const std::string& way, const std::vector<Device>& devices,
                               size_t index) {
  std::string out = way;
  for (const Device device : devices) out += "_" + std::to_string(device.index);
  return kFirst == kSecond ? out + "_of_" + std::to_string(index) : out;
}

}  // namespace lockstep

// At the beginning of a test of what fewer devices have not.
#define LOCKSTEP_WANT_DEVICES(n)  \
  if (simt::device_count() < (n)) \
  GTEST_SKIP() << "want " << (n) << " CUDA devices, this machine has " << simt::device_count()
