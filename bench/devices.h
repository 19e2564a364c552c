#pragma once

#include <string>
#include <vector>

#include "lockstep/kernels/device.h"

namespace bench {

// The value of --device: cpu alone, or CUDA devices with commas between. Throws
// Error(kInvalidArgument).
std::vector<lockstep::Device> parse_devices(const std::string& text);

// One for each rank, of `devices`, which has one for all of them or one for each. Throws
// Error(kInvalidArgument) for another number.
std::vector<lockstep::Device> devices_of(const std::vector<lockstep::Device>& devices, int ranks);

}  // namespace bench
