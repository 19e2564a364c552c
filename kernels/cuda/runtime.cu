// Devices, streams and events, memory and copies.
#include "lockstep/kernels/cuda/runtime.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/kernels/cuda/driver.cuh"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/text.h"

namespace lockstep::cuda {
namespace {

int current_device() {
  int device = 0;
  LOCKSTEP_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

// What is put on `later` after this call runs after what is on `earlier` now.
void order(const Stream& earlier, const Stream& later) {
  if (!(earlier == later)) later.wait(earlier.record());
}

constexpr std::string_view kWaits = "the host would wait for what has not begun";

bool is_done(cudaError_t error, std::string_view call) {
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(error, call);
  return true;
}

}  // namespace

bool may_be_late(int error) {
  constexpr std::array kLate = {
      214,  // ECCUncorrectable
      220,  // NvlinkUncorrectable
      700,  // IllegalAddress
      702,  // LaunchTimeout
      710,  // Assert
      714,  // HardwareStackError
      715,  // IllegalInstruction
      716,  // MisalignedAddress
      717,  // InvalidAddressSpace
      718,  // InvalidPc
      719,  // LaunchFailure
      721,  // TensorMemoryLeak
  };
  return std::find(kLate.begin(), kLate.end(), error) != kLate.end();
}

std::string failed_in(bool may_be_late) {
  const char* mangled = NamedKernel::current();
  const std::string name = mangled == nullptr ? "" : kernel_name(mangled);
  if (!may_be_late) return name.empty() ? "" : str_cat(", in ", name);
  return str_cat(name.empty() ? "" : str_cat(", seen in ", name),
                 "; work that was put on the device earlier may have caused it: with "
                 "CUDA_LAUNCH_BLOCKING=1 the kernel that did is named");
}

void check(cudaError_t error, std::string_view call, std::source_location where) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // one that does not stick is reported once
  const std::string_view name = cudaGetErrorName(error);
  const std::string_view meaning = cudaGetErrorString(error);
  throw Error(error == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDevice,
              "cuda", str_cat(name, " (", meaning, ") from ", call, failed_in(may_be_late(error))),
              where);
}

cudaStream_t stream() { return current_stream({DeviceType::kCuda, current_device()}).handle(); }

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

bool is_in_use(Device device) noexcept {
  static std::array<std::atomic<bool>, 64> known{};  // a context stays
  const auto at = static_cast<size_t>(device.index);
  if (at < known.size() && known[at].load(std::memory_order_relaxed)) return true;
  try {
    static const auto state_of =
        driver_function<PFN_cuDevicePrimaryCtxGetState_v7000>("cuDevicePrimaryCtxGetState");
    unsigned flags = 0;
    int active = 0;
    check_driver(state_of(device.index, &flags, &active), "cuDevicePrimaryCtxGetState");
    if (active != 0 && at < known.size()) known[at].store(true, std::memory_order_relaxed);
    return active != 0;
  } catch (...) {
    return true;  // as if it could not be asked
  }
}

namespace {

// What a guard made current last, in any thread; -1: nothing yet.
std::atomic<int> last_guarded{-1};

// For calls that concern no device, but want one to be current: one that this process uses.
Device some_device() {
  const int last = last_guarded.load(std::memory_order_relaxed);
  return {DeviceType::kCuda, last >= 0 ? last : current_device()};
}

}  // namespace

DeviceGuard::DeviceGuard(Device device) {
  LOCKSTEP_CUDA_CHECK(cudaGetDevice(&before_));
  // Though it is current already: in a thread that has called nothing yet the driver has none.
  LOCKSTEP_CUDA_CHECK(cudaSetDevice(device.index));
  last_guarded.store(device.index, std::memory_order_relaxed);
  if (before_ == device.index) before_ = -1;
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0 && is_in_use({DeviceType::kCuda, before_})) cudaSetDevice(before_);
}

bool caches_memory() {
#ifdef SIMT_STATIC_SHARED
  static const bool caches = std::getenv("SIMT_CACHE") != nullptr;
  return caches;
#else
  return true;
#endif
}

namespace {

// Null where an allocation failed for want of memory.
void* memory_or_null(cudaError_t error, void* memory, std::string_view call) {
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(error, call);
  return memory;
}

// All addresses that take_memory() ever gave lie in [lowest, highest). CUDA takes them from parts
// of the address space of its own, so that there is hardly any memory of the host between the two.
std::atomic<uintptr_t> lowest{UINTPTR_MAX};
std::atomic<uintptr_t> highest{0};

void note_taken(const void* memory, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  uintptr_t seen = lowest.load();
  while (begin < seen && !lowest.compare_exchange_weak(seen, begin)) {
  }
  seen = highest.load();
  while (begin + bytes > seen && !highest.compare_exchange_weak(seen, begin + bytes)) {
  }
}

}  // namespace

void* take_memory(Device device, size_t bytes) {
  const DeviceGuard guard(device);
  void* memory = nullptr;
  // In a capture CUDA wants to be told that this is meant.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (is_capturing()) LOCKSTEP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (is_capturing()) LOCKSTEP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
  memory = memory_or_null(error, memory, "cudaMalloc");
  if (memory != nullptr) note_taken(memory, bytes);
  return memory;
}

bool may_be_taken(const void* memory) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return address >= lowest.load(std::memory_order_relaxed) &&
         address < highest.load(std::memory_order_relaxed);
}

void free_memory(Device device, void* memory, const Stream& stream) noexcept {
  let_go(device, [&] {
    if (caches_memory()) {
      cudaFree(memory);
    } else {
      cudaFreeAsync(memory, stream.handle());
    }
  });
}

void* take_pinned(Device, size_t bytes) {
  const DeviceGuard guard(some_device());
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
  return memory_or_null(error, memory, "cudaHostAlloc");
}

void free_pinned(Device, void* memory, const Stream&) noexcept {
  let_go(some_device(), [&] { cudaFreeHost(memory); });
}

MemoryInfo memory_info(Device device) {
  const DeviceGuard guard(device);
  MemoryInfo info;
  LOCKSTEP_CUDA_CHECK(cudaMemGetInfo(&info.free, &info.total));
  return info;
}

Device device_of(const void* memory) {
  const DeviceGuard guard(some_device());
  cudaPointerAttributes attributes = {};
  LOCKSTEP_CUDA_CHECK(cudaPointerGetAttributes(&attributes, memory));
  if (attributes.type != cudaMemoryTypeDevice) return kCpu;
  return {DeviceType::kCuda, attributes.device};
}

bool reach_peer(Device device, Device peer) {
  if (device == peer) return true;
  int can = 0;
  LOCKSTEP_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, device.index, peer.index));
  if (can == 0) return false;
  const DeviceGuard guard(device);
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer.index, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
  } else {
    check(error, "cudaDeviceEnablePeerAccess");
  }
  return true;
}

void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes) {
  if (!to_device.is_cuda() || !from_device.is_cuda()) refuse_capture("copy to or from cpu", kWaits);
  const Device device = to_device.is_cuda() ? to_device : from_device;
  const DeviceGuard guard(device);
  const Stream stream = current_stream(device);
  if (to_device.is_cuda() && from_device.is_cuda() && to_device.index != from_device.index) {
    const Stream theirs = current_stream(from_device);
    order(theirs, stream);
    LOCKSTEP_CUDA_CHECK(
        cudaMemcpyPeerAsync(to, to_device.index, from, from_device.index, bytes, stream.handle()));
    order(stream, theirs);  // else `from` could be freed too soon
    return;
  }
  copy_async(to, from, bytes, stream);
  if (!to_device.is_cuda() || !from_device.is_cuda()) synchronize(stream);
}

void copy_async(void* to, const void* from, size_t bytes, const Stream& stream) {
  const DeviceGuard guard(stream.device());
  if (is_capturing()) {
    for (const void* memory : {static_cast<const void*>(to), from}) {
      cudaPointerAttributes attributes = {};
      LOCKSTEP_CUDA_CHECK(cudaPointerGetAttributes(&attributes, memory));
      if (attributes.type == cudaMemoryTypeUnregistered) {
        refuse_capture("copy_async", "memory of cpu is not pinned");
      }
    }
  }
  LOCKSTEP_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.handle()));
}

void set_zero(void* memory, size_t bytes, const Stream& stream) {
  if (is_renewing()) return;
  const DeviceGuard guard(stream.device());
  LOCKSTEP_CUDA_CHECK(cudaMemsetAsync(memory, 0, bytes, stream.handle()));
}

std::shared_ptr<CUstream_st> make_stream(Device device, bool high_priority) {
  const DeviceGuard guard(device);
  int least = 0;
  int greatest = 0;
  LOCKSTEP_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                   high_priority ? greatest : least));
  return {stream,
          [device](cudaStream_t gone) { let_go(device, [gone] { cudaStreamDestroy(gone); }); }};
}

CUstream_st* own_stream(Device device) {
  static auto* mutex = new std::mutex;
  static auto* streams = new std::vector<std::shared_ptr<CUstream_st>>;
  std::lock_guard lock(*mutex);
  const auto at = static_cast<size_t>(device.index);
  if (streams->size() <= at) streams->resize(at + 1);
  if ((*streams)[at] == nullptr) (*streams)[at] = make_stream(device, false);
  return (*streams)[at].get();
}

void synchronize(const Stream& stream) {
  refuse_capture("Stream::synchronize", kWaits);
  const DeviceGuard guard(stream.device());
  LOCKSTEP_CUDA_CHECK(cudaStreamSynchronize(stream.handle()));
}

bool is_done(const Stream& stream) {
  refuse_capture("Stream::done", kWaits);
  const DeviceGuard guard(stream.device());
  return is_done(cudaStreamQuery(stream.handle()), "cudaStreamQuery");
}

std::shared_ptr<CUevent_st> make_event(Device device, bool timed) {
  const DeviceGuard guard(device);
  cudaEvent_t event = nullptr;
  LOCKSTEP_CUDA_CHECK(
      cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  // What was recorded stays for those who wait already.
  return {event,
          [device](cudaEvent_t gone) { let_go(device, [gone] { cudaEventDestroy(gone); }); }};
}

void record(const Event& event, const Stream& stream) {
  const DeviceGuard guard(stream.device());
  LOCKSTEP_CUDA_CHECK(cudaEventRecord(event.handle(), stream.handle()));
}

void wait(const Stream& stream, const Event& event) {
  const DeviceGuard guard(stream.device());
  LOCKSTEP_CUDA_CHECK(cudaStreamWaitEvent(stream.handle(), event.handle(), 0));
}

void synchronize(const Event& event) {
  refuse_capture("Event::synchronize", kWaits);
  const DeviceGuard guard(event.device());
  LOCKSTEP_CUDA_CHECK(cudaEventSynchronize(event.handle()));
}

bool is_done(const Event& event) {
  refuse_capture("Event::done", kWaits);
  const DeviceGuard guard(event.device());
  return is_done(cudaEventQuery(event.handle()), "cudaEventQuery");
}

double milliseconds(const Event& start, const Event& end) {
  const DeviceGuard guard(start.device());
  float out = 0;
  LOCKSTEP_CUDA_CHECK(cudaEventElapsedTime(&out, start.handle(), end.handle()));
  return static_cast<double>(out);
}

}  // namespace lockstep::cuda
