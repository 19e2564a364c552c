#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/kernels/device.h"
#include "lockstep/kernels/stream.h"

// What the rest of the library asks of CUDA, without CUDA's headers. Defined where a build has CUDA
// (LOCKSTEP_WITH_CUDA). All of it is thread-safe and throws Error(kDevice) that names CUDA's call
// and error, and the kernel that it was for where there is one, unless said.
namespace lockstep::cuda {

// Tells the messages of errors, while it lives, for which kernel the calling thread calls CUDA.
class NamedKernel {
 public:
  // `mangled`: the name of the kernel's type, which stays.
  explicit NamedKernel(const char* mangled) : outer_(std::exchange(current_, mangled)) {}
  ~NamedKernel() { current_ = outer_; }
  NamedKernel(const NamedKernel&) = delete;
  NamedKernel& operator=(const NamedKernel&) = delete;

  // Null outside of kernels.
  static const char* current() { return current_; }

 private:
  static inline constinit thread_local const char* current_ = nullptr;
  const char* outer_;
};

// The end of a message about a failed call: ", in Softmax", or nothing outside of kernels. A device
// `may_be_late` to tell of the failure, at a call that has nothing to do with it: then it says so,
// and what to do.
std::string failed_in(bool may_be_late);
// Whether an error, by its number, which CUDA's runtime and driver share, is of that kind.
bool may_be_late(int error);

// Devices that this driver shows; 0 without a driver. Does not throw.
int device_count();

// Whether this process has a context on the device, which takes some hundred MiB of its memory.
// Does not throw.
bool is_in_use(Device device) noexcept;

// Makes `device` the calling thread's current one while it lives. The one before is made current
// again where this process uses it: for one that it does not, CUDA would make a context.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

// Makes the calls that let something of `device` go while that is the current one. Does not throw:
// where the device has failed, its next user will be told.
template <class Calls>
void let_go(Device device, const Calls& calls) noexcept {
  try {
    const DeviceGuard guard(device);
    calls();
  } catch (...) {
  }
}

// Whether blocks that are given back are kept and rounded up: not in the emulator, which finds
// steps beyond a block and late uses of it, unless SIMT_CACHE is set.
bool caches_memory();

// Null where the device has no more. Freed memory is used again only after what was put on
// `stream` before.
void* take_memory(Device device, size_t bytes);
void free_memory(Device device, void* memory, const Stream& stream) noexcept;
// Page-locked memory of the host, which all devices reach.
void* take_pinned(Device, size_t bytes);
void free_pinned(Device, void* memory, const Stream&) noexcept;

struct MemoryInfo {
  size_t free = 0;
  size_t total = 0;
};
MemoryInfo memory_info(Device device);

// Where memory lies: kCpu for all that is not a device's.
Device device_of(const void* memory);
// False for what cannot be of take_memory(), without asking CUDA: two loads.
bool may_be_taken(const void* memory) noexcept;
// Lets kernels and copies of `device` reach memory of `peer`; false where the machine cannot.
bool reach_peer(Device device, Device peer);

// Copies between memory of any two devices, the CPU among them, behind what was put on their
// current streams before. Returns when host memory may be read, or overwritten.
void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes);
// Puts a copy on a stream of a device that is one of the two, or that reaches both. Waits where
// memory of the host is not pinned.
void copy_async(void* to, const void* from, size_t bytes, const Stream& stream);
void set_zero(void* memory, size_t bytes, const Stream& stream);

// ---- Streams and events, for stream.cpp ----

std::shared_ptr<CUstream_st> make_stream(Device device, bool high_priority);
// Made at first use, and never destroyed.
CUstream_st* own_stream(Device device);
void synchronize(const Stream& stream);
bool is_done(const Stream& stream);

std::shared_ptr<CUevent_st> make_event(Device device, bool timed);
void record(const Event& event, const Stream& stream);
void wait(const Stream& stream, const Event& event);
void synchronize(const Event& event);
bool is_done(const Event& event);
double milliseconds(const Event& start, const Event& end);

}  // namespace lockstep::cuda
