#include "devices.h"

#include <algorithm>
#include <sstream>

#include "lockstep/kernels/error.h"

namespace bench {

using lockstep::Device;

std::vector<Device> parse_devices(const std::string& text) {
  std::vector<Device> devices;
  std::istringstream stream(text);
  for (std::string one; std::getline(stream, one, ',');) {
    devices.push_back(lockstep::parse_device(one));
  }
  const auto is_cpu = [](const Device& device) { return device.is_cpu(); };
  const bool has_cpu = std::any_of(devices.begin(), devices.end(), is_cpu);
  lockstep::check(!devices.empty() && (!has_cpu || devices.size() == 1), "--device", [&] {
    return "want cpu alone, or CUDA devices with commas between, got '" + text + "'";
  });
  return devices;
}

std::vector<Device> devices_of(const std::vector<Device>& devices, int ranks) {
  if (devices.size() == 1) return std::vector<Device>(static_cast<size_t>(ranks), devices[0]);
  lockstep::check(devices.size() == static_cast<size_t>(ranks), "--device", [&] {
    return "want one for all ranks, or one for each of " + std::to_string(ranks) + ", got " +
           std::to_string(devices.size());
  });
  return devices;
}

}  // namespace bench
