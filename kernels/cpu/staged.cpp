#include "lockstep/kernels/cpu/staged.h"

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/memory.h"

namespace lockstep::kernels {
namespace {

// Whether the view's memory can be used as it is. Strides of dimensions of size 1 do not count.
bool fits(const View& view, const Strides& strides) {
  if (lane_dtype(view.dtype) != view.dtype) return false;
  for (size_t d = 0; d < strides.size(); ++d) {
    if (view.shape[d] != 1 && view.strides[d] != strides[d]) return false;
  }
  return true;
}

// Memory for the lanes of a view; strides are those of a dense order.
std::shared_ptr<void> lanes(const View& view, const Strides& strides, View* staged) {
  const DType dtype = lane_dtype(view.dtype);
  std::shared_ptr<void> memory = allocate(static_cast<size_t>(view.numel()) * size_of(dtype));
  *staged = View{memory.get(), dtype, view.device, view.shape, strides};
  return memory;
}

}  // namespace

StagedInput::StagedInput(const View& view, const Strides& strides) : staged_(view) {
  if (fits(view, strides)) return;
  memory_ = lanes(view, strides, &staged_);
  Copy::cpu(view, staged_);
}

StagedOutput::StagedOutput(const View& view, const Strides& strides) : view_(view), staged_(view) {
  if (!fits(view, strides)) memory_ = lanes(view, strides, &staged_);
}

void StagedOutput::finish() const {
  if (memory_ != nullptr) Copy::cpu(staged_, view_);
}

}  // namespace lockstep::kernels
