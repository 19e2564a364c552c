#pragma once

#include "lockstep/kernels/conv.h"
#include "lockstep/kernels/cuda/dnn.h"
#include "lockstep/kernels/view.h"

// What NVIDIA's libraries reach alone, in flop/s: the best of the algorithms that they advise, each
// measured as measure() does, on operands that lie as they like them. f32 is multiplied as Lockstep
// does it (LOCKSTEP_TF32). 0 where a build is without the library.
namespace lockstep::bench {

#ifdef LOCKSTEP_WITH_CUBLASLT
// a (m, k) b (k, n) = y (m, n), all contiguous, by cuBLASLt: what each memory holds is taken by
// rows and by columns. y is overwritten.
double cublas_rate(const View& a, const View& b, const View& y);
#else
inline double cublas_rate(const View&, const View&, const View&) { return 0; }
#endif

#ifdef LOCKSTEP_WITH_CUDNN
// A convolution by cuDNN, in the layout of its operands; an engine need not give the same bits each
// time. The one that it computes is overwritten.
double cudnn_rate(cuda::Computes what, const View& x, const View& weight, const View& y,
                  const kernels::Conv2dParams& params, double flops);
#else
inline double cudnn_rate(cuda::Computes, const View&, const View&, const View&,
                         const kernels::Conv2dParams&, double) {
  return 0;
}
#endif

}  // namespace lockstep::bench
