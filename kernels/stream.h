#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "lockstep/kernels/device.h"

struct CUevent_st;  // what CUDA's own types point to
struct CUstream_st;

namespace lockstep {

class Event;

enum class StreamPriority : uint8_t { kNormal, kHigh };

// An in-order queue of work on a device. On the CPU a kernel has finished when its call returns, so
// that a CPU stream has nothing to wait for and nothing that waits. Cheap to copy; all copies are
// one stream, which goes with the last of them once its work has finished. Thread-safe.
//
// Work on two streams is in no order but that of events:
//
//   const Stream side = Stream::create(device);
//   side.wait(current_stream(device).record());  // what was computed so far
//   {
//     StreamGuard guard(side);
//     ...                                        // operations here are put on `side`
//   }
//   current_stream(device).wait(side.record());  // from here on their results may be used
//
// Memory that was allocated for one stream and is used on another must be told so: used_on().
class Stream {
 public:
  // The device's own stream, on which all work goes that is put on no other.
  explicit Stream(Device device = kCpu) : device_(device) {}
  // One more. Work of high priority begins before what waits on other streams of the device.
  // Throws Error(kDevice) for a device that is not there.
  static Stream create(Device device, StreamPriority priority = StreamPriority::kNormal);

  Device device() const { return device_; }
  // Returns when all that was put on the stream before has finished.
  // Throws Error(kDevice) for what a kernel did wrong before.
  void synchronize() const;
  // Whether it has finished. Throws as synchronize() does.
  bool done() const;
  // A mark behind all that was put on the stream so far. Only timed ones have times.
  Event record(bool timed = false) const;
  // What is put on the stream after this call runs after what `event` marks, on whatever device.
  void wait(const Event& event) const;

  // CUDA's stream, for kernels/ and comm/; null on the CPU.
  CUstream_st* handle() const;

  friend bool operator==(const Stream&, const Stream&) = default;

 private:
  Device device_;
  std::shared_ptr<CUstream_st> handle_;  // null: the device's own
};

// A mark between the work on a stream. Cheap to copy; all copies are one mark. One that was
// default-constructed, or recorded on the CPU, has been passed.
class Event {
 public:
  Event() = default;
  Event(Device device, std::shared_ptr<CUevent_st> handle)
      : device_(device), handle_(std::move(handle)) {}

  // Whether all before it has finished. Throws Error(kDevice) for what a kernel did wrong before.
  bool done() const;
  // Returns when it has. Throws as done() does.
  void synchronize() const;

  Device device() const { return device_; }
  CUevent_st* handle() const { return handle_.get(); }  // for kernels/ and comm/

  // Milliseconds from one mark to another; both are timed, done and of one device.
  // Throws Error(kInvalidArgument) where they are not, Error(kDevice) as done() does.
  friend double milliseconds_between(const Event& start, const Event& end);

 private:
  friend class Stream;
  Device device_;
  std::shared_ptr<CUevent_st> handle_;
  int64_t host_ns_ = -1;  // of a timed one on the CPU; of one on a CUDA device 0
};
double milliseconds_between(const Event& start, const Event& end);

// The stream that operations of the calling thread use on `device`.
Stream current_stream(Device device = kCpu);

// Makes a stream the calling thread's current one on its device while it lives. Guards of a thread
// end in the reverse order of their making.
class StreamGuard {
 public:
  explicit StreamGuard(Stream stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  const Stream stream_;
  const Stream* before_ = nullptr;
};

}  // namespace lockstep
