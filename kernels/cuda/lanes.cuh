#pragma once

#include <memory>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/memory.h"

namespace lockstep::cuda {

// The elements of a small view, a weight or a statistic, as neighbours in row-major order of the
// dtype that is computed in: the view's own memory where they are that already, else a copy. Null
// for no view. Kernels that read it are put on the stream before it ends.
class Lanes {
 public:
  Lanes(const View* view, DType dtype) {
    if (view == nullptr || view->numel() == 0) return;
    if (view->dtype == dtype && view->is_contiguous()) {
      data_ = view->data;
      return;
    }
    memory_ = allocate(static_cast<size_t>(view->numel()) * size_of(dtype), view->device);
    kernels::Copy::cuda(
        *view, {memory_.get(), dtype, view->device, view->shape, contiguous_strides(view->shape)});
    data_ = memory_.get();
  }

  template <class T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }

 private:
  std::shared_ptr<void> memory_;
  const void* data_ = nullptr;
};

}  // namespace lockstep::cuda
