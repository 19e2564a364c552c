// CUDA's runtime API over streams.h.
#include <cudaTypedefs.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "streams.h"

using namespace simt;

namespace {

// Whether [p, p + bytes) is memory that a copy may touch, and whose.
bool whole(const void* p, size_t bytes, cudaMemoryType* type) {
  const Allocation* start = find_memory(p, 0);
  if (start == nullptr) {
    *type = cudaMemoryTypeUnregistered;
    return true;
  }
  *type = start->kind == MemoryKind::kDevice ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  return find_memory(p, bytes) != nullptr;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                 bool waits) {
  Lock lock;
  if (sticky() != cudaSuccess) return fail(sticky());
  if (bytes == 0) return cudaSuccess;
  cudaMemoryType to_type, from_type;
  if (!whole(to, bytes, &to_type) || !whole(from, bytes, &from_type))
    return fail(cudaErrorInvalidValue);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault && (to_device != (to_type == cudaMemoryTypeDevice) ||
                                    from_device != (from_type == cudaMemoryTypeDevice))) {
    return fail(cudaErrorInvalidValue);
  }
  if (waits || from_type == cudaMemoryTypeUnregistered || to_type == cudaMemoryTypeUnregistered) {
    const CUstream_st* found = find_stream(stream);
    const cudaError_t error = refuse(found == nullptr ? nullptr : found->capture.get());
    if (error != cudaSuccess) return fail(error);
  }
  Op op;
  if (from_type == cudaMemoryTypeUnregistered) {
    // Pageable memory is staged before the call returns.
    const auto* bytes_of = static_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(bytes_of, bytes_of + bytes);
    op.work = [to, staged] { std::memcpy(to, staged->data(), staged->size()); };
  } else {
    op.work = [to, from, bytes] { std::memcpy(to, from, bytes); };
  }
  const cudaError_t error = push(stream, std::move(op));
  if (error != cudaSuccess) return error;
  if (!waits && to_type != cudaMemoryTypeUnregistered) return cudaSuccess;
  return synchronize(*find_stream(stream));
}

}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return copy(to, from, bytes, kind, nullptr, true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return copy(to, from, bytes, kind, stream, false);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
  Lock lock;
  cudaMemoryType to_type, from_type;
  if (!whole(to, bytes, &to_type) || !whole(from, bytes, &from_type) ||
      to_type != cudaMemoryTypeDevice || from_type != cudaMemoryTypeDevice) {
    return fail(cudaErrorInvalidValue);
  }
  Op op;
  op.work = [to, from, bytes] {
    open_memory(find_memory(to)->device, 1u << find_memory(from)->device);
    std::memcpy(to, from, bytes);
  };
  return push(stream, std::move(op));
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  Lock lock;
  cudaMemoryType type;
  if (!whole(memory, bytes, &type) || type == cudaMemoryTypeUnregistered) {
    return fail(cudaErrorInvalidValue);
  }
  Op op;
  op.work = [=] { std::memset(memory, value, bytes); };
  return push(stream, std::move(op));
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

cudaError_t cudaGetDeviceCount(int* count) {
  Lock lock;
  *count = world().device_count;
  return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= world().device_count) return fail(cudaErrorInvalidDevice);
  this_device = device;
  use_device();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = this_device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= world().device_count) return fail(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = 2;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(kDynamicSharedBytes);
      return cudaSuccess;
  }
  return fail(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceSynchronize() {
  Lock lock;
  if (const cudaError_t error = refuse(); error != cudaSuccess) return fail(error);
  if (in_callback) return fail(cudaErrorNotPermitted);
  // The lock is given up meanwhile, and another thread may destroy a stream.
  std::vector<std::shared_ptr<CUstream_st>> mine;
  for (auto& [handle, stream] : world().streams) {
    if (stream->device == this_device) mine.push_back(stream);
  }
  cudaError_t error = std::max(sticky(), synchronize(*find_stream(nullptr)));
  for (const auto& stream : mine) error = std::max(error, synchronize(*stream));
  return error;
}
cudaError_t cudaDeviceReset() {
  Lock lock;
  world().devices[this_device].sticky = cudaSuccess;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  Lock lock;
  if (peer < 0 || peer >= world().device_count || peer == this_device) {
    return fail(cudaErrorInvalidDevice);
  }
  unsigned& peers = world().devices[this_device].peers;
  if ((peers >> peer & 1) != 0) return fail(cudaErrorPeerAccessAlreadyEnabled);
  peers |= 1u << peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = sticky() != cudaSuccess ? sticky() : last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return sticky() != cudaSuccess ? sticky() : last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define SIMT_NAME(e) \
  case e:            \
    return #e;
    SIMT_NAME(cudaSuccess)
    SIMT_NAME(cudaErrorInvalidValue)
    SIMT_NAME(cudaErrorMemoryAllocation)
    SIMT_NAME(cudaErrorInvalidConfiguration)
    SIMT_NAME(cudaErrorInvalidDevicePointer)
    SIMT_NAME(cudaErrorInvalidMemcpyDirection)
    SIMT_NAME(cudaErrorInsufficientDriver)
    SIMT_NAME(cudaErrorNoDevice)
    SIMT_NAME(cudaErrorInvalidDevice)
    SIMT_NAME(cudaErrorInvalidResourceHandle)
    SIMT_NAME(cudaErrorIllegalState)
    SIMT_NAME(cudaErrorNotReady)
    SIMT_NAME(cudaErrorIllegalAddress)
    SIMT_NAME(cudaErrorLaunchOutOfResources)
    SIMT_NAME(cudaErrorPeerAccessAlreadyEnabled)
    SIMT_NAME(cudaErrorLaunchFailure)
    SIMT_NAME(cudaErrorNotPermitted)
    SIMT_NAME(cudaErrorStreamCaptureUnsupported)
    SIMT_NAME(cudaErrorStreamCaptureInvalidated)
    SIMT_NAME(cudaErrorStreamCaptureMerge)
    SIMT_NAME(cudaErrorStreamCaptureUnmatched)
    SIMT_NAME(cudaErrorStreamCaptureUnjoined)
    SIMT_NAME(cudaErrorStreamCaptureIsolation)
    SIMT_NAME(cudaErrorCapturedEvent)
    SIMT_NAME(cudaErrorStreamCaptureWrongThread)
#undef SIMT_NAME
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  Lock lock;
  if (const cudaError_t error = refuse(); error != cudaSuccess) return fail(error);
  if (in_callback) return fail(cudaErrorNotPermitted);
  if (sticky() != cudaSuccess) return fail(sticky());
  use_device();
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  const Allocation* a = allocate_memory(MemoryKind::kDevice, this_device, bytes);
  if (a == nullptr) return fail(cudaErrorMemoryAllocation);
  *memory = a->base;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  Lock lock;
  if (const cudaError_t error = refuse(); error != cudaSuccess) return fail(error);
  if (in_callback) return fail(cudaErrorNotPermitted);
  try {
    if (!free_memory(memory, MemoryKind::kDevice)) return fail(cudaErrorInvalidValue);
  } catch (const Fault& fault) {
    return fail(stick(this_device, fault));
  }
  return sticky();
}
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  Lock lock;
  if (memory == nullptr) return cudaSuccess;
  if (find_memory(memory) == nullptr) return fail(cudaErrorInvalidValue);
  Op op;
  op.work = [memory] {
    if (!free_memory(memory, MemoryKind::kDevice)) {
      throw Fault{cudaErrorIllegalAddress, "memory was freed twice"};
    }
  };
  return push(stream, std::move(op));
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  Lock lock;
  if (const cudaError_t error = refuse(); error != cudaSuccess) return fail(error);
  use_device();
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  const Allocation* a = allocate_memory(MemoryKind::kPinned, this_device, bytes);
  if (a == nullptr) return fail(cudaErrorMemoryAllocation);
  *memory = a->base;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }
cudaError_t cudaFreeHost(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  Lock lock;
  if (const cudaError_t error = refuse(); error != cudaSuccess) return fail(error);
  return free_memory(memory, MemoryKind::kPinned) ? sticky() : fail(cudaErrorInvalidValue);
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  Lock lock;
  return register_memory(memory, bytes) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaHostUnregister(void* memory) {
  const cudaError_t error = cudaDeviceSynchronize();
  Lock lock;
  return unregister_memory(memory) ? error : fail(cudaErrorInvalidValue);
}
cudaError_t cudaHostGetDevicePointer(void** on_device, void* memory, unsigned) {
  Lock lock;
  const Allocation* a = find_memory(memory);
  if (a == nullptr || a->kind != MemoryKind::kPinned) return fail(cudaErrorInvalidValue);
  *on_device = memory;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Lock lock;
  *total = memory_limit();
  *free = *total - memory_in_use(this_device);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  Lock lock;
  const Allocation* a = find_memory(memory);
  auto* p = const_cast<void*>(memory);
  if (a == nullptr) {
    *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, p};
  } else if (a->kind == MemoryKind::kPinned) {
    *attributes = {cudaMemoryTypeHost, a->device, p, p};
  } else {
    *attributes = {cudaMemoryTypeDevice, a->device, p, nullptr};
  }
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  Lock lock;
  use_device();
  auto made = std::make_shared<CUstream_st>();
  made->device = this_device;
  made->priority = std::clamp(priority, -5, 0);
  *stream = made.get();
  world().streams[made.get()] = std::move(made);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock;
  CUstream_st* found = stream == nullptr ? nullptr : find_stream(stream);
  if (found == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (found->capture != nullptr) return fail(refuse(found->capture.get()));
  found->is_destroyed = true;
  return sticky();
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Lock lock;
  if (in_callback) return fail(cudaErrorNotPermitted);
  CUstream_st* found = find_stream(stream);
  if (found == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse(found->capture.get()); error != cudaSuccess)
    return fail(error);
  return synchronize(*found);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Lock lock;
  CUstream_st* found = find_stream(stream);
  if (found == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse(found->capture.get()); error != cudaSuccess)
    return fail(error);
  poll();
  if (sticky() != cudaSuccess) return fail(sticky());
  if (found->finished < found->pushed) return cudaErrorNotReady;
  acquire(found->done);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  Lock lock;
  Op op;
  op.on_host = true;
  op.work = [function, data] {
    in_callback = true;
    function(data);
    in_callback = false;
  };
  return push(stream, std::move(op));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Lock lock;
  use_device();
  auto made = std::make_shared<CUevent_st>();
  made->flags = flags;
  *event = made.get();
  world().events[made.get()] = made;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Lock lock;
  const std::shared_ptr<CUevent_st> found = find_event(event);
  if (found == nullptr) return fail(cudaErrorInvalidResourceHandle);
  found->capture = nullptr;  // which may hold the event
  world().events.erase(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Lock lock;
  Op op;
  op.record = find_event(event);
  if (op.record == nullptr || find_stream(stream) == nullptr) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (find_stream(stream)->capture == nullptr) {
    op.record->capture = nullptr;
    op.count = ++op.record->recorded;
  }
  return push(stream, std::move(op));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Lock lock;
  Op op;
  op.wait = find_event(event);
  if (op.wait == nullptr || find_stream(stream) == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  op.count = op.wait->recorded;
  return push(stream, std::move(op));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Lock lock;
  const auto found = find_event(event);
  if (found == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse(found->capture.get(), cudaErrorCapturedEvent);
      error != cudaSuccess)
    return fail(error);
  poll();
  if (sticky() != cudaSuccess) return fail(sticky());
  if (found->completed < found->recorded) return cudaErrorNotReady;
  acquire(found->token);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock;
  if (in_callback) return fail(cudaErrorNotPermitted);
  const auto found = find_event(event);
  if (found == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse(found->capture.get(), cudaErrorCapturedEvent);
      error != cudaSuccess)
    return fail(error);
  const uint64_t until = found->recorded;
  wait_for(*found, until);
  acquire(found->token);
  return sticky() == cudaSuccess ? cudaSuccess : fail(sticky());
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  Lock lock;
  const auto a = find_event(start), b = find_event(end);
  if (a == nullptr || b == nullptr || ((a->flags | b->flags) & cudaEventDisableTiming) != 0 ||
      a->recorded == 0 || b->recorded == 0) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  for (const auto& event : {a, b}) {
    if (event->completed < event->recorded) return cudaErrorNotReady;
  }
  *milliseconds = static_cast<float>(static_cast<int64_t>(b->stamp_us - a->stamp_us)) / 1000;
  return cudaSuccess;
}

namespace {

// A word in memory of the host, else null.
uint64_t* find_word(CUdeviceptr address) {
  auto* word = reinterpret_cast<uint64_t*>(address);
  const Allocation* a = find_memory(word, sizeof *word);
  return a != nullptr && a->kind == MemoryKind::kPinned && address % 8 == 0 ? word : nullptr;
}

CUresult push_word(CUstream stream, Op op) {
  return push(stream, std::move(op)) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// Orders all that is written for all that waits: between threads that is more than there is.
Token words;

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  Lock lock;
  Op op;
  op.word = find_word(address);
  op.count = value;
  op.work = [] { acquire(words); };
  if (op.word == nullptr || flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
  return push_word(stream, std::move(op));
}

CUresult write_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  Lock lock;
  uint64_t* word = find_word(address);
  if (word == nullptr || flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  Op op;
  op.work = [word, value] {
    release(words);
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  };
  return push_word(stream, std::move(op));
}

CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  if (attribute != CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)
    return CUDA_ERROR_INVALID_VALUE;
  *value = std::getenv("SIMT_NO_WORDS") == nullptr ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult context_state(CUdevice device, unsigned* flags, int* active) {
  if (device < 0 || device >= world().device_count) return CUDA_ERROR_INVALID_VALUE;
  *flags = 0;
  *active = world().devices[device].has_context ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const std::string_view name = symbol;
  *function = name == "cuStreamWaitValue64"          ? reinterpret_cast<void*>(wait_value)
              : name == "cuStreamWriteValue64"       ? reinterpret_cast<void*>(write_value)
              : name == "cuDeviceGetAttribute"       ? reinterpret_cast<void*>(device_attribute)
              : name == "cuDevicePrimaryCtxGetState" ? reinterpret_cast<void*>(context_state)
                                                     : nullptr;
  if (found != nullptr) {
    *found =
        *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  Lock lock;
  return export_memory(memory, handle) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  Lock lock;
  *memory = import_memory(handle, this_device);
  return *memory != nullptr ? cudaSuccess : fail(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaIpcCloseMemHandle(void* memory) { return cudaFree(memory); }
