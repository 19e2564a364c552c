#include "lockstep/kernels/transfer.h"

#include <cstring>

#ifdef LOCKSTEP_WITH_CUDA
#include "lockstep/kernels/cuda/runtime.h"
#endif

namespace lockstep {

void transfer(const View& x, const View& y) {
  const size_t bytes = static_cast<size_t>(x.numel()) * size_of(x.dtype);
  if (bytes == 0) return;
  require_device(x.device, "transfer");
  require_device(y.device, "transfer");
#ifdef LOCKSTEP_WITH_CUDA
  if (x.device.is_cuda() || y.device.is_cuda()) {
    cuda::copy(y.data, y.device, x.data, x.device, bytes);
    return;
  }
#endif
  std::memcpy(y.data, x.data, bytes);
}

}  // namespace lockstep
