#include "lockstep/kernels/stream.h"

#include <array>
#include <chrono>
#include <utility>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#ifdef LOCKSTEP_WITH_CUDA
#include "lockstep/kernels/cuda/runtime.h"
#endif

namespace lockstep {
namespace {

constexpr size_t kMostDevices = 64;

// By device; null where no guard lives. Plain pointers: memory may be freed when a thread has ended
// so far that what it owned is gone.
thread_local std::array<const Stream*, kMostDevices> current_streams = {};

const Stream*& slot_of(Device device) {
  check(device.index >= 0 && static_cast<size_t>(device.index) < kMostDevices, "stream",
        [&] { return str_cat("want a device under ", kMostDevices, ", got ", device.name()); });
  return current_streams[static_cast<size_t>(device.index)];
}

}  // namespace

Stream Stream::create(Device device, StreamPriority priority) {
  require_device(device, "stream");
  Stream out(device);
#ifdef LOCKSTEP_WITH_CUDA
  if (device.is_cuda()) {
    out.handle_ = cuda::make_stream(device, priority == StreamPriority::kHigh);
  }
#else
  (void)priority;
#endif
  return out;
}

CUstream_st* Stream::handle() const {
#ifdef LOCKSTEP_WITH_CUDA
  if (device_.is_cuda()) return handle_ != nullptr ? handle_.get() : cuda::own_stream(device_);
#endif
  return nullptr;
}

void Stream::synchronize() const {
#ifdef LOCKSTEP_WITH_CUDA
  if (device_.is_cuda()) cuda::synchronize(*this);
#endif
}

bool Stream::done() const {
#ifdef LOCKSTEP_WITH_CUDA
  if (device_.is_cuda()) return cuda::is_done(*this);
#endif
  return true;
}

Event Stream::record(bool timed) const {
  Event out;
  out.device_ = device_;
#ifdef LOCKSTEP_WITH_CUDA
  if (device_.is_cuda()) {
    out.handle_ = cuda::make_event(device_, timed);
    cuda::record(out, *this);
    if (timed) out.host_ns_ = 0;
    return out;
  }
#endif
  if (timed) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    out.host_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }
  return out;
}

void Stream::wait(const Event& event) const {
  if (event.handle() == nullptr) return;
#ifdef LOCKSTEP_WITH_CUDA
  if (device_.is_cuda()) return cuda::wait(*this, event);
#endif
  event.synchronize();
}

bool Event::done() const {
#ifdef LOCKSTEP_WITH_CUDA
  if (handle_ != nullptr) return cuda::is_done(*this);
#endif
  return true;
}

void Event::synchronize() const {
#ifdef LOCKSTEP_WITH_CUDA
  if (handle_ != nullptr) cuda::synchronize(*this);
#endif
}

double milliseconds_between(const Event& start, const Event& end) {
  check(start.device_ == end.device_, "milliseconds_between", [&] {
    return str_cat("want events of one device, got ", start.device_.name(), " and ",
                   end.device_.name());
  });
  check(start.host_ns_ >= 0 && end.host_ns_ >= 0, "milliseconds_between",
        "want events of record(true), got one without a time");
  check(start.done() && end.done(), "milliseconds_between",
        "want events that have been passed, got one that its stream still has to come to");
#ifdef LOCKSTEP_WITH_CUDA
  if (start.device_.is_cuda()) return cuda::milliseconds(start, end);
#endif
  return static_cast<double>(end.host_ns_ - start.host_ns_) * 1e-6;
}

Stream current_stream(Device device) {
  if (device.is_cpu()) return Stream(device);
  const Stream* current = slot_of(device);
  return current != nullptr ? *current : Stream(device);
}

StreamGuard::StreamGuard(Stream stream) : stream_(std::move(stream)) {
  if (stream_.device().is_cuda()) before_ = std::exchange(slot_of(stream_.device()), &stream_);
}

StreamGuard::~StreamGuard() {
  if (stream_.device().is_cuda()) slot_of(stream_.device()) = before_;
}

}  // namespace lockstep
