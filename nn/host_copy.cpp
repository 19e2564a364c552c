#include "lockstep/nn/host_copy.h"

#include <cstring>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/transfer.h"

namespace lockstep::nn {

Tensor on_host(const Tensor& tensor) {
  NoGrad no_grad;
  return contiguous(to(tensor.detach(), kCpu));
}

Tensor host_copy(const Tensor& tensor) {
  NoGrad no_grad;
  const Device device = tensor.device();
  if (device.is_cuda()) {
    const Tensor dense = contiguous(tensor.detach());
    const auto bytes = static_cast<size_t>(dense.nbytes());
    Tensor copy = Tensor::wrap(allocate_pinned(bytes), dense.shape(), {dense.dtype()});
    copy_async(copy.view().data, dense.view().data, bytes, current_stream(device));
    return copy;
  }
  Tensor copy = Tensor::empty(tensor.shape(), tensor.options());
  if (tensor.is_contiguous()) {
    // Large copies of the C library go past the cache, and leave training's data there.
    std::memcpy(copy.view().data, tensor.view().data, static_cast<size_t>(tensor.nbytes()));
  } else {
    copy.copy_(tensor);
  }
  return copy;
}

}  // namespace lockstep::nn
