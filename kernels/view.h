#pragma once

#include <cstdint>

#include "lockstep/kernels/device.h"
#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/shape.h"

namespace lockstep {

// What a kernel sees of a tensor: a borrowed pointer with shape and strides (in elements). It owns
// nothing; whoever calls the kernel keeps the memory alive until the kernel's stream is done.
struct View {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device;
  Shape shape;
  Strides strides;

  int64_t numel() const { return lockstep::numel(shape); }
  int64_t dim() const { return static_cast<int64_t>(shape.size()); }
  bool is_contiguous() const { return lockstep::is_contiguous(shape, strides); }
  bool is_channels_last() const { return lockstep::is_channels_last(shape, strides); }

  // The same memory seen as one of `wanted`. REQUIRES: the shape broadcasts to it.
  View expanded(const Shape& wanted) const {
    return {data, dtype, device, wanted, expanded_strides(shape, strides, wanted)};
  }

  // REQUIRES: T is the C++ type of `dtype`.
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace lockstep
