#pragma once

#include <optional>
#include <string>

#include "lockstep/nn/module.h"
#include "lockstep/nn/size2.h"

namespace lockstep::nn {

struct MaxPool2dOptions {
  std::optional<Size2> stride = std::nullopt;  // none: the kernel's size
  Size2 padding = 0;                           // at most half the kernel
  Size2 dilation = 1;
};

// max_pool2d() of x (N, C, H, W).
class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(Size2 kernel_size, const MaxPool2dOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  Size2 kernel_size_;
  Size2 stride_;
  MaxPool2dOptions options_;
};

struct AvgPool2dOptions {
  std::optional<Size2> stride = std::nullopt;  // none: the kernel's size
  Size2 padding = 0;                           // at most half the kernel
  bool count_include_pad = true;               // whether the padding's zeros count in the mean
};

// avg_pool2d() of x (N, C, H, W).
class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(Size2 kernel_size, const AvgPool2dOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  Size2 kernel_size_;
  Size2 stride_;
  AvgPool2dOptions options_;
};

}  // namespace lockstep::nn
