#include "lockstep/kernels/conv.h"

#include <string>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cuda/dnn.h"
#include "lockstep/kernels/cuda/staged.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::kernels {
namespace {

using cuda::Computes;
using cuda::Staged;

// Computes one operand from the others, in channels-last memory unless both images are row by row.
// Of f64 cuDNN takes the latter alone.
void convolve(Computes what, std::string_view op, const View& x, const View& weight, const View& y,
              const Conv2dParams& params) {
  check(is_floating(x.dtype), op,
        [&] { return std::string("want a floating dtype, got ").append(name(x.dtype)); });
  const View& result = what == Computes::kY ? y : what == Computes::kX ? x : weight;
  if (result.numel() == 0) return;
  if (x.numel() == 0 || weight.numel() == 0 || y.numel() == 0) return Fill::cuda(result, 0.0);
  const bool by_rows = x.dtype == DType::kF64 || (x.is_contiguous() && y.is_contiguous());
  const auto stage = [&](const View& view) {
    return Staged(view,
                  by_rows ? contiguous_strides(view.shape) : channels_last_strides(view.shape),
                  &view == &result ? Staged::kWritten : Staged::kRead);
  };
  const Staged images = stage(x), kernel = stage(weight), outputs = stage(y);
  cuda::convolve(op, what, images.view(), kernel.view(), outputs.view(), params);
  for (const Staged* staged : {&images, &kernel, &outputs}) staged->finish();
}

}  // namespace

void Conv2d::cuda(const View& x, const View& weight, const View* bias, const View& y,
                  const Conv2dParams& params) {
  convolve(Computes::kY, "conv2d", x, weight, y, params);
  if (bias == nullptr) return;
  View wide = *bias;
  wide.shape = y.shape;
  wide.strides = {0, bias->strides[0], 0, 0};
  Binary<Add>::cuda(y, wide, y);
}

void Conv2dInputGrad::cuda(const View& g, const View& weight, const View& gx,
                           const Conv2dParams& params) {
  convolve(Computes::kX, "conv2d_input_grad", gx, weight, g, params);
}

void Conv2dWeightGrad::cuda(const View& g, const View& x, const View& gweight,
                            const Conv2dParams& params) {
  convolve(Computes::kWeight, "conv2d_weight_grad", x, gweight, g, params);
}

}  // namespace lockstep::kernels
