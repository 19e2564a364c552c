#pragma once

#include <memory>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/view.h"

namespace lockstep::cuda {

// How what takes few layouts, or one dtype, meets any other: the view itself where it has the
// wanted strides and dtype, else memory that has them. Strides of dimensions of size 1 do not
// count. What reads it is put on the stream before it ends.
class Staged {
 public:
  enum Use { kRead, kWritten };

  Staged(const View& view, const Strides& strides, Use use)
      : Staged(view, strides, use, view.dtype) {}
  Staged(const View& view, const Strides& strides, Use use, DType dtype)
      : original_(view), view_(view), use_(use) {
    bool fits = view.dtype == dtype;
    view_.dtype = dtype;
    for (size_t d = 0; d < strides.size(); ++d) {
      fits = fits && (view.shape[d] == 1 || view.strides[d] == strides[d]);
    }
    view_.strides = strides;
    if (fits) return;
    memory_ = allocate(static_cast<size_t>(view.numel()) * size_of(dtype), view.device);
    view_.data = memory_.get();
    if (use == kRead) kernels::Copy::cuda(original_, view_);
  }

  const View& view() const { return view_; }
  // Brings what was written to the view.
  void finish() const {
    if (use_ == kWritten && memory_ != nullptr) kernels::Copy::cuda(view_, original_);
  }

 private:
  View original_;
  View view_;
  Use use_;
  std::shared_ptr<void> memory_;
};

}  // namespace lockstep::cuda
