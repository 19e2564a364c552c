// Memory and words that processes share.
//
// Streams of several processes wait for each other by words of the host's memory and the driver's
// stream memory operations:
//
// - and not by CUDA's interprocess events: what is done with one whose process has ended is
//   undefined, so that no stream could be sure to get past one. A page that processes share is
//   there as long as one of them has it, and any of them may write it to let a stream go on.
// - and not in a kernel that looks at a flag: processes that share a device take turns on it, and
//   such a kernel has its process's turn, of some milliseconds, for nothing. As events do, these
//   operations wait in the device's front end, which goes on with another process meanwhile.
//
// CUDA does not see this order. So a stream must wait only for words whose writing was put on its
// stream before: then no order in which CUDA may run its queues can make them wait for ever.
#include "lockstep/kernels/cuda/ipc.h"

#include <bit>
#include <cstring>

#include "lockstep/kernels/cuda/driver.cuh"
#include "lockstep/kernels/cuda/runtime.h"

namespace lockstep::cuda {

static_assert(sizeof(IpcHandle) == sizeof(cudaIpcMemHandle_t));

IpcHandle export_memory(void* block, Device device) {
  const DeviceGuard guard(device);
  cudaIpcMemHandle_t handle;
  LOCKSTEP_CUDA_CHECK(cudaIpcGetMemHandle(&handle, block));
  return std::bit_cast<IpcHandle>(handle);
}

std::shared_ptr<void> import_memory(const IpcHandle& handle, Device device) {
  const DeviceGuard guard(device);
  void* memory = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaIpcOpenMemHandle(&memory, std::bit_cast<cudaIpcMemHandle_t>(handle),
                                           cudaIpcMemLazyEnablePeerAccess));
  return {memory,
          [device](void* gone) { let_go(device, [gone] { cudaIpcCloseMemHandle(gone); }); }};
}

std::shared_ptr<void> register_words(void* pages, size_t bytes, Device device) {
  const DeviceGuard guard(device);
  LOCKSTEP_CUDA_CHECK(
      cudaHostRegister(pages, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
  const std::shared_ptr<void> registered(
      pages, [device](void* gone) { let_go(device, [gone] { cudaHostUnregister(gone); }); });
  void* on_device = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaHostGetDevicePointer(&on_device, pages, 0));
  return {registered, on_device};
}

bool has_words(Device device) {
  static const auto attribute =
      driver_function<PFN_cuDeviceGetAttribute_v2000>("cuDeviceGetAttribute");
  int has = 0;
  check_driver(attribute(&has, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device.index),
               "cuDeviceGetAttribute");
  return has != 0;
}

void set_word(void* word, uint64_t value, const Stream& stream) {
  static const auto write =
      driver_function<PFN_cuStreamWriteValue64_v11070>("cuStreamWriteValue64");
  const DeviceGuard guard(stream.device());
  // By default behind a fence for the whole system.
  check_driver(
      write(stream.handle(), std::bit_cast<uintptr_t>(word), value, CU_STREAM_WRITE_VALUE_DEFAULT),
      "cuStreamWriteValue64");
}

void wait_for_word(void* word, uint64_t value, const Stream& stream) {
  static const auto wait = driver_function<PFN_cuStreamWaitValue64_v11070>("cuStreamWaitValue64");
  const DeviceGuard guard(stream.device());
  check_driver(
      wait(stream.handle(), std::bit_cast<uintptr_t>(word), value, CU_STREAM_WAIT_VALUE_GEQ),
      "cuStreamWaitValue64");
}

}  // namespace lockstep::cuda
