#include "lockstep/kernels/transfer.h"

#include <cstring>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/text.h"
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
  require_device(x.device, "transfer_async");
  require_device(y.device, "transfer_async");
  const Device device = stream.device();
  const bool reaches = device.is_cuda() ? device == x.device || device == y.device
                                        : x.device.is_cpu() && y.device.is_cpu();
  check(reaches, "transfer_async", [&] {
    return str_cat("want a stream of ", x.device.name(), " or ", y.device.name(),
                   ", the CUDA device of them, got one of ", device.name());
  });
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
