#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "lockstep/kernels/stream.h"

// Device memory and events that processes of one host share. Throws Error(kDevice) that names
// CUDA's call and error.
namespace lockstep::cuda {

// What another process needs to find memory or an event of this one.
struct IpcHandle {
  std::array<std::byte, 64> bytes = {};
};

// Of a whole block of take_memory(), which must not be freed while others have it mapped.
IpcHandle export_memory(void* block, Device device);
// Another process's block, for kernels of `device`; mapped until the last owner lets go.
std::shared_ptr<void> import_memory(const IpcHandle& handle, Device device);

// An event that others may wait for, and record; default-recorded, it has been passed.
Event make_shared_event(Device device);
IpcHandle export_event(const Event& event);
Event import_event(const IpcHandle& handle, Device device);

}  // namespace lockstep::cuda
