#include "lockstep/kernels/conv.h"

#include <string>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cuda/dnn.h"
#include "lockstep/kernels/cuda/staged.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::kernels {
namespace {

using cuda::Computes;
using cuda::Staged;

// Computes one operand from the others, in channels-last memory unless both images are row by row,
// or in the other of the two where cuDNN has no engine for the first. A bias is the value that the
// sums of y start from.
void convolve(Computes what, std::string_view op, const View& x, const View& weight,
              const View* bias, const View& y, const Conv2dParams& params) {
  check(is_floating(x.dtype), op,
        [&] { return std::string("want a floating dtype, got ").append(name(x.dtype)); });
  const View& result = what == Computes::kY ? y : what == Computes::kX ? x : weight;
  if (result.numel() == 0) return;
  const auto start_with_bias = [&](const View& to) {
    View wide = *bias;
    wide.shape = y.shape;
    wide.strides = {0, bias->strides[0], 0, 0};
    Copy::cuda(wide, to);
  };
  if (x.numel() == 0 || weight.numel() == 0 || y.numel() == 0) {
    return bias == nullptr ? Fill::cuda(result, 0.0) : start_with_bias(y);
  }
  // Of f64 cuDNN is known to take rows alone.
  const bool prefers_rows = x.dtype == DType::kF64 || (x.is_contiguous() && y.is_contiguous());
  for (const bool by_rows : {prefers_rows, !prefers_rows}) {
    const auto stage = [&](const View& view) {
      return Staged(view,
                    by_rows ? contiguous_strides(view.shape) : channels_last_strides(view.shape),
                    &view == &result ? Staged::kWritten : Staged::kRead);
    };
    const Staged images = stage(x), kernel = stage(weight), outputs = stage(y);
    if (bias != nullptr) start_with_bias(outputs.view());
    if (!cuda::convolve(op, what, images.view(), kernel.view(), outputs.view(), params,
                        bias != nullptr)) {
      continue;
    }
    for (const Staged* staged : {&images, &kernel, &outputs}) staged->finish();
    return;
  }
  throw Error(
      ErrorCode::kDevice, op,
      str_cat("cuDNN has no engine that always gives the same bits and whose workspace fits "
              "the device for x ",
              to_string(x.shape), ", weight ", to_string(weight.shape), " and y ",
              to_string(y.shape), " of ", name(x.dtype)));
}

}  // namespace

void Conv2d::cuda(const View& x, const View& weight, const View* bias, const View& y,
                  const Conv2dParams& params) {
  convolve(Computes::kY, "conv2d", x, weight, bias, y, params);
}

void Conv2dInputGrad::cuda(const View& g, const View& weight, const View& gx,
                           const Conv2dParams& params) {
  convolve(Computes::kX, "conv2d_input_grad", gx, weight, nullptr, g, params);
}

void Conv2dWeightGrad::cuda(const View& g, const View& x, const View& gweight,
                            const Conv2dParams& params) {
  convolve(Computes::kWeight, "conv2d_weight_grad", x, gweight, nullptr, g, params);
}

}  // namespace lockstep::kernels
