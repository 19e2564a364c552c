#pragma once

#include "lockstep/kernels/device.h"

namespace lockstep {

// An in-order queue of work on a device. On the CPU a kernel has finished when its call returns,
// so a CPU stream has nothing to wait for. A CUDA device has one, on which all of its work is put.
// Cheap to copy.
class Stream {
 public:
  explicit Stream(Device device = kCpu) : device_(device) {}

  Device device() const { return device_; }
  // Returns when all that was put on the stream before has finished.
  // Throws Error(kDevice) for what a kernel did wrong before.
  void synchronize() const;

  friend bool operator==(const Stream&, const Stream&) = default;

 private:
  Device device_;
};

// The stream that operations of the calling thread use on `device`.
inline Stream current_stream(Device device = kCpu) { return Stream(device); }

}  // namespace lockstep
