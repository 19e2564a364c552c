#pragma once

#include <cstddef>

#include "lockstep/kernels/device.h"

// What the rest of the library asks of CUDA, without CUDA's headers. Defined where a build has CUDA
// (LOCKSTEP_WITH_CUDA). All of it is thread-safe and throws Error(kDevice) that names CUDA's call
// and error unless said.
namespace lockstep::cuda {

// Devices that this driver shows; 0 without a driver. Does not throw.
int device_count();

// Makes `device` the calling thread's current one while it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

// Whether blocks that are given back are kept and rounded up: not in the emulator, which finds
// steps beyond a block and late uses of it.
bool caches_memory();

// Null where the device has no such much. Freed memory is used again only after what was put on the
// device's stream before.
void* take_memory(int device, size_t bytes);
void free_memory(int device, void* memory) noexcept;

// Copies between memory of any two devices, the CPU among them, behind what was put on their
// streams before. Returns when host memory may be read, or overwritten.
void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes);

// Returns when all that was put on the device's stream before has finished.
void synchronize(Device device);

}  // namespace lockstep::cuda
