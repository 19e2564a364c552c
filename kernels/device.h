#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

enum class DeviceType : uint8_t { kCpu = 0, kCuda = 1 };

// Where memory lives and where its kernels run. There is one CPU device; CUDA devices are numbered
// as the driver numbers them.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  bool is_cpu() const { return type == DeviceType::kCpu; }
  bool is_cuda() const { return type == DeviceType::kCuda; }
  // "cpu", "cuda:0".
  std::string name() const;

  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device kCpu{};

// Reads "cpu", "cuda" and "cuda:N". Throws Error(kInvalidArgument) otherwise.
Device parse_device(std::string_view text);

// How many devices of a type can be used in this process, with this build and this driver.
int device_count(DeviceType type);

// Throws Error(kDevice) that says how to get it, unless this build and machine have `device`.
void require_device(Device device, std::string_view op);

}  // namespace lockstep
