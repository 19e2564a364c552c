#pragma once

#include <optional>

#include "lockstep/kernels/cuda/staged.h"

namespace lockstep::cuda {

// The elements of a small view, a weight or a statistic, as neighbours in row-major order of the
// dtype that is computed in. Null for no view.
class Lanes {
 public:
  Lanes(const View* view, DType dtype) {
    if (view == nullptr || view->numel() == 0) return;
    staged_.emplace(*view, contiguous_strides(view->shape), Staged::kRead, dtype);
  }

  template <class T>
  const T* as() const {
    return staged_ ? staged_->view().as<T>() : nullptr;
  }

 private:
  std::optional<Staged> staged_;
};

}  // namespace lockstep::cuda
