#include "lockstep/kernels/transfer.h"

#include <cstring>

#include "lockstep/kernels/memory.h"
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

void transfer_async(const View& x, const View& y, const Stream& stream) {
  require_device(x.device, "transfer");
  require_device(y.device, "transfer");
  copy_async(y.data, x.data, static_cast<size_t>(x.numel()) * size_of(x.dtype), stream);
}

void copy_async(void* to, const void* from, size_t bytes, const Stream& stream) {
  if (bytes == 0) return;
#ifdef LOCKSTEP_WITH_CUDA
  if (stream.device().is_cuda()) {
    cuda::copy_async(to, from, bytes, stream);
    used_on(to, stream);
    used_on(from, stream);
    return;
  }
#else
  (void)stream;
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace lockstep
