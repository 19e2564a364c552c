#pragma once

#include <string>

#include "lockstep/core/ops/resize.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/size2.h"

namespace lockstep::nn {

// adaptive_avg_pool2d() of x (N, C, H, W) to (N, C, output_size).
class AdaptiveAvgPool2d : public Module {
 public:
  // Throws Error(kInvalidArgument) unless the sizes are 1 and more.
  explicit AdaptiveAvgPool2d(Size2 output_size);

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  Size2 output_size_;
};

struct UpsampleOptions {
  UpsampleMode mode = UpsampleMode::kNearest;
  bool align_corners = false;  // of kBilinear alone
};

// upsample2d() of x (N, C, H, W) to (N, C, scale_factor H, scale_factor W).
class Upsample : public Module {
 public:
  // Throws Error(kInvalidArgument) unless the factors are 1 and more.
  explicit Upsample(Size2 scale_factor, const UpsampleOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  Size2 scale_factor_;
  UpsampleOptions options_;
};

}  // namespace lockstep::nn
