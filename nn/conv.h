#pragma once

#include <cstdint>
#include <string>

#include "lockstep/nn/module.h"
#include "lockstep/nn/size2.h"

namespace lockstep::nn {

struct Conv2dModuleOptions {
  Size2 stride = 1;
  Size2 padding = 0;
  Size2 dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

// conv2d() of x (N, in_channels, H, W) with weight (out_channels, in_channels / groups, rows,
// columns) and bias (out_channels), which start from U(-b, b), b = 1 / sqrt(fan_in):
//
//   Conv2d(3, 16, 3, {.stride = 2, .padding = 1, .bias = false})
class Conv2d : public Module {
 public:
  // Throws Error(kInvalidArgument) unless groups divides both channel counts, the sizes are 1 and
  // more, and the padding 0 and more.
  Conv2d(int64_t in_channels, int64_t out_channels, Size2 kernel_size,
         const Conv2dModuleOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

  Tensor weight;
  Tensor bias;  // undefined without one

 private:
  Conv2dModuleOptions options_;
};

}  // namespace lockstep::nn
