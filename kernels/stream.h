#pragma once

#include "lockstep/kernels/device.h"

namespace lockstep {

// An in-order queue of work on a device. On the CPU a kernel has finished when its call returns,
// so a CPU stream has nothing to wait for. Cheap to copy.
class Stream {
 public:
  explicit Stream(Device device = kCpu) : device_(device) {}

  Device device() const { return device_; }
  // Returns when all that was put on the stream before has finished.
  void synchronize() const {}

  friend bool operator==(const Stream&, const Stream&) = default;

 private:
  Device device_;
};

// The stream that operations of the calling thread use on `device`.
inline Stream current_stream(Device device = kCpu) { return Stream(device); }

}  // namespace lockstep
