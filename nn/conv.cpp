#include "lockstep/nn/conv.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "lockstep/core/ops/conv.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {
namespace {

// What a layer of either dimension count is made with, as two sizes each.
struct Geometry {
  int64_t in_channels;
  int64_t out_channels;
  Size2 kernel_size;
  Size2 stride;
  Size2 padding;
  Size2 dilation;
  int64_t groups;
};

void check_geometry(std::string_view layer, const Geometry& g) {
  check(g.in_channels > 0 && g.out_channels > 0 && g.groups > 0 && g.in_channels % g.groups == 0 &&
            g.out_channels % g.groups == 0,
        layer, [&] {
          return absl::StrCat("want channels of 1 and more that groups divides, got in_channels ",
                              g.in_channels, ", out_channels ", g.out_channels, ", groups ",
                              g.groups);
        });
  check(g.kernel_size.at_least(1) && g.stride.at_least(1) && g.dilation.at_least(1) &&
            g.padding.at_least(0),
        layer, [&] {
          return absl::StrCat(
              "want kernel_size, stride and dilation of 1 and more and padding of "
              "0 and more, got ",
              g.kernel_size.to_string(), ", ", g.stride.to_string(), ", ", g.dilation.to_string(),
              " and ", g.padding.to_string());
        });
}

// From U(-b, b), b = 1 / sqrt(fan_in of the weight).
Tensor initial(const Shape& shape, const Shape& weight_shape) {
  const int64_t fan_in = numel(weight_shape, "fan_in") / weight_shape[0];
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  Tensor out = Tensor::empty(shape);
  uniform_(out, -bound, bound);
  return out;
}

// What is printed of a layer: sizes as PyTorch prints them, options that differ from the default.
template <class Size>
std::string text(const Size& size) {
  if constexpr (std::is_same_v<Size, Size2>) {
    return size.to_string();
  } else {
    return absl::StrCat("(", size, ",)");
  }
}

template <class Options, class Size>
std::string describe(int64_t in, int64_t out, const Size& kernel_size, const Options& options) {
  std::string repr = absl::StrCat(in, ", ", out, ", kernel_size=", text(kernel_size),
                                  ", stride=", text(options.stride));
  if (options.padding != 0) absl::StrAppend(&repr, ", padding=", text(options.padding));
  if constexpr (requires { options.output_padding; }) {
    if (options.output_padding != 0) {
      absl::StrAppend(&repr, ", output_padding=", text(options.output_padding));
    }
  }
  if (options.dilation != 1) absl::StrAppend(&repr, ", dilation=", text(options.dilation));
  if (options.groups != 1) absl::StrAppend(&repr, ", groups=", options.groups);
  if (!options.bias) absl::StrAppend(&repr, ", bias=false");
  return repr;
}

void check_output_padding(std::string_view layer, Size2 output_padding, Size2 stride,
                          Size2 dilation) {
  const auto fits = [](int64_t more, int64_t step, int64_t gap) {
    return more >= 0 && (more < step || more < gap);
  };
  check(fits(output_padding.rows, stride.rows, dilation.rows) &&
            fits(output_padding.columns, stride.columns, dilation.columns),
        layer, [&] {
          return absl::StrCat("want an output_padding of 0 and more, below stride ",
                              stride.to_string(), " or dilation ", dilation.to_string(), ", got ",
                              output_padding.to_string());
        });
}

}  // namespace

void ConvModule::register_weights(const Shape& weight_shape, int64_t out_channels, bool with_bias) {
  weight = initial(weight_shape, weight_shape);
  register_parameter("weight", weight);
  if (with_bias) {
    bias = initial({out_channels}, weight_shape);
    register_parameter("bias", bias);
  }
}

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, Size2 kernel_size,
               const Conv2dModuleOptions& options)
    : options_(options) {
  check_geometry("Conv2d", {in_channels, out_channels, kernel_size, options.stride, options.padding,
                            options.dilation, options.groups});
  register_weights(
      {out_channels, in_channels / options.groups, kernel_size.rows, kernel_size.columns},
      out_channels, options.bias);
}

Tensor Conv2d::forward(const Tensor& x) {
  return conv2d(x, weight, bias,
                {.stride = options_.stride.array(),
                 .padding = options_.padding.array(),
                 .dilation = options_.dilation.array(),
                 .groups = options_.groups});
}

std::string Conv2d::extra_repr() const {
  return describe(weight.size(1) * options_.groups, weight.size(0),
                  Size2(weight.size(2), weight.size(3)), options_);
}

Conv1d::Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel_size,
               const Conv1dModuleOptions& options)
    : options_(options) {
  check_geometry("Conv1d", {in_channels, out_channels, kernel_size, options.stride, options.padding,
                            options.dilation, options.groups});
  register_weights({out_channels, in_channels / options.groups, kernel_size}, out_channels,
                   options.bias);
}

Tensor Conv1d::forward(const Tensor& x) {
  return conv1d(x, weight, bias,
                {.stride = options_.stride,
                 .padding = options_.padding,
                 .dilation = options_.dilation,
                 .groups = options_.groups});
}

std::string Conv1d::extra_repr() const {
  return describe(weight.size(1) * options_.groups, weight.size(0), weight.size(2), options_);
}

ConvTranspose2d::ConvTranspose2d(int64_t in_channels, int64_t out_channels, Size2 kernel_size,
                                 const ConvTranspose2dModuleOptions& options)
    : options_(options) {
  check_geometry("ConvTranspose2d", {in_channels, out_channels, kernel_size, options.stride,
                                     options.padding, options.dilation, options.groups});
  check_output_padding("ConvTranspose2d", options.output_padding, options.stride, options.dilation);
  register_weights(
      {in_channels, out_channels / options.groups, kernel_size.rows, kernel_size.columns},
      out_channels, options.bias);
}

Tensor ConvTranspose2d::forward(const Tensor& x) {
  return conv_transpose2d(x, weight, bias,
                          {.stride = options_.stride.array(),
                           .padding = options_.padding.array(),
                           .output_padding = options_.output_padding.array(),
                           .dilation = options_.dilation.array(),
                           .groups = options_.groups});
}

std::string ConvTranspose2d::extra_repr() const {
  return describe(weight.size(0), weight.size(1) * options_.groups,
                  Size2(weight.size(2), weight.size(3)), options_);
}

ConvTranspose1d::ConvTranspose1d(int64_t in_channels, int64_t out_channels, int64_t kernel_size,
                                 const ConvTranspose1dModuleOptions& options)
    : options_(options) {
  check_geometry("ConvTranspose1d", {in_channels, out_channels, kernel_size, options.stride,
                                     options.padding, options.dilation, options.groups});
  check_output_padding("ConvTranspose1d", options.output_padding, options.stride, options.dilation);
  register_weights({in_channels, out_channels / options.groups, kernel_size}, out_channels,
                   options.bias);
}

Tensor ConvTranspose1d::forward(const Tensor& x) {
  return conv_transpose1d(x, weight, bias,
                          {.stride = options_.stride,
                           .padding = options_.padding,
                           .output_padding = options_.output_padding,
                           .dilation = options_.dilation,
                           .groups = options_.groups});
}

std::string ConvTranspose1d::extra_repr() const {
  return describe(weight.size(0), weight.size(1) * options_.groups, weight.size(2), options_);
}

}  // namespace lockstep::nn
