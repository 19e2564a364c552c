#pragma once

#include <cstdint>
#include <string>

#include "lockstep/nn/module.h"
#include "lockstep/nn/size2.h"

namespace lockstep::nn {

// The parameters that each layer of this file has.
class ConvModule : public Module {
 public:
  Tensor weight;
  Tensor bias;  // undefined without one

 protected:
  // From U(-b, b), b = 1 / sqrt(fan_in of the weight).
  void register_weights(const Shape& weight_shape, int64_t out_channels, bool with_bias);
};

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
class Conv2d : public ConvModule {
 public:
  // Throws Error(kInvalidArgument) unless groups divides both channel counts, the sizes are 1 and
  // more, and the padding 0 and more.
  Conv2d(int64_t in_channels, int64_t out_channels, Size2 kernel_size,
         const Conv2dModuleOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  Conv2dModuleOptions options_;
};

struct Conv1dModuleOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

// conv1d() of x (N, in_channels, L) with weight (out_channels, in_channels / groups, size) and bias
// (out_channels), which start as those of Conv2d and are checked as they are.
class Conv1d : public ConvModule {
 public:
  Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel_size,
         const Conv1dModuleOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  Conv1dModuleOptions options_;
};

struct ConvTranspose2dModuleOptions {
  Size2 stride = 1;
  Size2 padding = 0;
  Size2 output_padding = 0;  // below the stride or the dilation
  int64_t groups = 1;
  bool bias = true;
  Size2 dilation = 1;
};

// conv_transpose2d() of x (N, in_channels, H, W) with weight (in_channels, out_channels / groups,
// rows, columns) and bias (out_channels), which start from U(-b, b), b = 1 / sqrt(fan_in), with the
// fan of PyTorch: out_channels / groups rows columns. Checked as Conv2d.
class ConvTranspose2d : public ConvModule {
 public:
  ConvTranspose2d(int64_t in_channels, int64_t out_channels, Size2 kernel_size,
                  const ConvTranspose2dModuleOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  ConvTranspose2dModuleOptions options_;
};

struct ConvTranspose1dModuleOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t output_padding = 0;
  int64_t groups = 1;
  bool bias = true;
  int64_t dilation = 1;
};

// conv_transpose1d() of x (N, in_channels, L) with weight (in_channels, out_channels / groups,
// size) and bias (out_channels), as ConvTranspose2d.
class ConvTranspose1d : public ConvModule {
 public:
  ConvTranspose1d(int64_t in_channels, int64_t out_channels, int64_t kernel_size,
                  const ConvTranspose1dModuleOptions& options = {});

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  ConvTranspose1dModuleOptions options_;
};

}  // namespace lockstep::nn
