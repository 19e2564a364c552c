#include "lockstep/kernels/cuda/ipc.h"

#include <cstring>

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/runtime.h"

namespace lockstep::cuda {
namespace {

static_assert(sizeof(IpcHandle) == sizeof(cudaIpcMemHandle_t));
static_assert(sizeof(IpcHandle) == sizeof(cudaIpcEventHandle_t));

template <class Theirs>
IpcHandle to_ours(const Theirs& handle) {
  IpcHandle out;
  std::memcpy(out.bytes.data(), &handle, sizeof handle);
  return out;
}

template <class Theirs>
Theirs to_theirs(const IpcHandle& handle) {
  Theirs out;
  std::memcpy(&out, handle.bytes.data(), sizeof out);
  return out;
}

std::shared_ptr<CUevent_st> owned(cudaEvent_t event) {
  return {event, [](cudaEvent_t gone) { cudaEventDestroy(gone); }};
}

}  // namespace

IpcHandle export_memory(void* block, Device device) {
  const DeviceGuard guard(device);
  cudaIpcMemHandle_t handle;
  LOCKSTEP_CUDA_CHECK(cudaIpcGetMemHandle(&handle, block));
  return to_ours(handle);
}

std::shared_ptr<void> import_memory(const IpcHandle& handle, Device device) {
  const DeviceGuard guard(device);
  void* memory = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaIpcOpenMemHandle(&memory, to_theirs<cudaIpcMemHandle_t>(handle),
                                           cudaIpcMemLazyEnablePeerAccess));
  return {memory, [device](void* gone) {
            try {
              const DeviceGuard back(device);
              cudaIpcCloseMemHandle(gone);
            } catch (...) {
              // The device has failed, and the mapping goes with the process.
            }
          }};
}

Event make_shared_event(Device device) {
  const DeviceGuard guard(device);
  cudaEvent_t event = nullptr;
  LOCKSTEP_CUDA_CHECK(
      cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
  return {device, owned(event)};
}

IpcHandle export_event(const Event& event) {
  const DeviceGuard guard(event.device());
  cudaIpcEventHandle_t handle;
  LOCKSTEP_CUDA_CHECK(cudaIpcGetEventHandle(&handle, event.handle()));
  return to_ours(handle);
}

Event import_event(const IpcHandle& handle, Device device) {
  const DeviceGuard guard(device);
  cudaEvent_t event = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaIpcOpenEventHandle(&event, to_theirs<cudaIpcEventHandle_t>(handle)));
  return {device, owned(event)};
}

}  // namespace lockstep::cuda
