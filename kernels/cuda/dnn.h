#pragma once

#include <string_view>

#include "lockstep/kernels/conv.h"
#include "lockstep/kernels/view.h"

// Convolutions on CUDA as kernels/cuda/conv.cu asks for them: cuDNN's in dnn.cu, a plain loop in
// the emulator of tests/simt/.
namespace lockstep::cuda {

// Which of a convolution's operands is computed from the other two: y, x's gradient from y's, or
// weight's gradient from y's.
enum class Computes { kY, kX, kWeight };

// Puts x (N, C, H, W) * weight (O, C / groups, kh, kw) = y (N, O, H', W'), or one of its gradients,
// on the current device's stream; where it `adds`, to what the result holds. None is empty; all are
// of one floating dtype and either contiguous or channels-last, with exactly those strides. Sums
// and LOCKSTEP_TF32 as for multiply() of blas.h; the same bits each time. Returns false where the
// library has no engine that promises this for these strides. Throws Error(kDevice) that names
// `op`, with the library's words, or where the build found no cuDNN.
bool convolve(std::string_view op, Computes what, const View& x, const View& weight, const View& y,
              const kernels::Conv2dParams& params, bool adds);

}  // namespace lockstep::cuda
