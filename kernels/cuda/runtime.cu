// Devices, the stream of each, memory and copies.
#include "lockstep/kernels/cuda/runtime.h"

#include <mutex>
#include <string>
#include <vector>

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::cuda {
namespace {

// One for each device, made at first use. Never destroyed: memory of static lifetime may be freed
// after it would have been.
cudaStream_t stream_of(int device) {
  static auto* mutex = new std::mutex;
  static auto* streams = new std::vector<cudaStream_t>;
  std::lock_guard lock(*mutex);
  const auto at = static_cast<size_t>(device);
  if (streams->size() <= at) streams->resize(at + 1);
  if ((*streams)[at] == nullptr) {
    const DeviceGuard guard({DeviceType::kCuda, device});
    LOCKSTEP_CUDA_CHECK(cudaStreamCreateWithFlags(&(*streams)[at], cudaStreamNonBlocking));
  }
  return (*streams)[at];
}

int current_device() {
  int device = 0;
  LOCKSTEP_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

// What is put on `later` after this call runs after what is on `earlier` now.
void order(cudaStream_t earlier, int device, cudaStream_t later) {
  const DeviceGuard guard({DeviceType::kCuda, device});
  cudaEvent_t event = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  cudaError_t error = cudaEventRecord(event, earlier);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(later, event, 0);
  cudaEventDestroy(event);  // what was recorded stays
  check(error, "cudaStreamWaitEvent");
}

}  // namespace

void check(cudaError_t error, std::string_view call, std::source_location where) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // one that does not stick is reported once
  const std::string_view name = cudaGetErrorName(error);
  const std::string_view meaning = cudaGetErrorString(error);
  throw Error(error == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDevice,
              "cuda", str_cat(name, " (", meaning, ") from ", call), where);
}

cudaStream_t stream() { return stream_of(current_device()); }

unsigned full_grid() {
  int processors = 1;
  LOCKSTEP_CUDA_CHECK(
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, current_device()));
  return static_cast<unsigned>(processors) * 8;
}

void check_rank(size_t rank, std::string_view op) {
  lockstep::check(rank <= kMaxDims, op, [&] {
    return str_cat("want at most ", kMaxDims,
                   " dimensions that do not follow each other in memory, got ", rank,
                   "; call contiguous() on the operands");
  });
}

int device_count() {
  static const int count = [] {
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
    cudaGetLastError();
    return 0;
  }();
  return count;
}

DeviceGuard::DeviceGuard(Device device) {
  LOCKSTEP_CUDA_CHECK(cudaGetDevice(&before_));
  if (before_ != device.index) LOCKSTEP_CUDA_CHECK(cudaSetDevice(device.index));
}

DeviceGuard::~DeviceGuard() { cudaSetDevice(before_); }

bool caches_memory() {
#ifdef SIMT_STATIC_SHARED
  return false;
#else
  return true;
#endif
}

void* take_memory(int device, size_t bytes) {
  const DeviceGuard guard({DeviceType::kCuda, device});
  void* memory = nullptr;
  const cudaError_t error = caches_memory() ? cudaMalloc(&memory, bytes)
                                            : cudaMallocAsync(&memory, bytes, stream_of(device));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(error, "cudaMalloc");
  return memory;
}

// An error that the device had before shows at the next call that may throw.
void free_memory(int device, void* memory) noexcept {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return;
  if (caches_memory()) {
    cudaFree(memory);
  } else {
    cudaFreeAsync(memory, stream_of(device));
  }
  cudaSetDevice(before);
}

void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes) {
  const Device device = to_device.is_cuda() ? to_device : from_device;
  const DeviceGuard guard(device);
  const cudaStream_t stream = stream_of(device.index);
  if (to_device.is_cuda() && from_device.is_cuda() && to_device.index != from_device.index) {
    const cudaStream_t theirs = stream_of(from_device.index);
    order(theirs, from_device.index, stream);
    LOCKSTEP_CUDA_CHECK(
        cudaMemcpyPeerAsync(to, to_device.index, from, from_device.index, bytes, stream));
    order(stream, to_device.index, theirs);  // else `from` could be freed too soon
    return;
  }
  LOCKSTEP_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  if (!to_device.is_cuda() || !from_device.is_cuda()) {
    LOCKSTEP_CUDA_CHECK(cudaStreamSynchronize(stream));
  }
}

void synchronize(Device device) {
  const DeviceGuard guard(device);
  LOCKSTEP_CUDA_CHECK(cudaStreamSynchronize(stream_of(device.index)));
}

}  // namespace lockstep::cuda
