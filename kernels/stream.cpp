#include "lockstep/kernels/stream.h"

#ifdef LOCKSTEP_WITH_CUDA
#include "lockstep/kernels/cuda/runtime.h"
#endif

namespace lockstep {

void Stream::synchronize() const {
#ifdef LOCKSTEP_WITH_CUDA
  if (device_.is_cuda()) cuda::synchronize(device_);
#endif
}

}  // namespace lockstep
