#include "lockstep/nn/resize.h"

#include "absl/strings/str_cat.h"

namespace lockstep::nn {

AdaptiveAvgPool2d::AdaptiveAvgPool2d(Size2 output_size) : output_size_(output_size) {
  check(output_size.at_least(1), "AdaptiveAvgPool2d", [&] {
    return absl::StrCat("want an output_size of 1 and more, got ", output_size.to_string());
  });
}

Tensor AdaptiveAvgPool2d::forward(const Tensor& x) {
  return adaptive_avg_pool2d(x, output_size_.array());
}

std::string AdaptiveAvgPool2d::extra_repr() const {
  return absl::StrCat("output_size=", output_size_.to_string());
}

Upsample::Upsample(Size2 scale_factor, const UpsampleOptions& options)
    : scale_factor_(scale_factor), options_(options) {
  check(scale_factor.at_least(1), "Upsample", [&] {
    return absl::StrCat("want a scale_factor of 1 and more, got ", scale_factor.to_string());
  });
}

Tensor Upsample::forward(const Tensor& x) {
  check(x.dim() == 4, "Upsample", [&] {
    return absl::StrCat("want images (N, C, H, W), got shape ", lockstep::to_string(x.shape()));
  });
  return upsample2d(x, {x.size(2) * scale_factor_.rows, x.size(3) * scale_factor_.columns},
                    options_.mode, options_.align_corners);
}

std::string Upsample::extra_repr() const {
  const bool bilinear = options_.mode == UpsampleMode::kBilinear;
  return absl::StrCat("scale_factor=", scale_factor_.to_string(),
                      ", mode=", bilinear ? "bilinear" : "nearest",
                      bilinear && options_.align_corners ? ", align_corners=true" : "");
}

}  // namespace lockstep::nn
