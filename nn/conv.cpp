#include "lockstep/nn/conv.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "lockstep/core/ops/conv.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, Size2 kernel_size,
               const Conv2dModuleOptions& options)
    : options_(options) {
  const int64_t groups = options.groups;
  check(in_channels > 0 && out_channels > 0 && groups > 0 && in_channels % groups == 0 &&
            out_channels % groups == 0,
        "Conv2d", [&] {
          return absl::StrCat("want channels of 1 and more that groups divides, got in_channels ",
                              in_channels, ", out_channels ", out_channels, ", groups ", groups);
        });
  check(kernel_size.at_least(1) && options.stride.at_least(1) && options.dilation.at_least(1) &&
            options.padding.at_least(0),
        "Conv2d", [&] {
          return absl::StrCat(
              "want kernel_size, stride and dilation of 1 and more and padding of "
              "0 and more, got ",
              kernel_size.to_string(), ", ", options.stride.to_string(), ", ",
              options.dilation.to_string(), " and ", options.padding.to_string());
        });
  weight =
      Tensor::empty({out_channels, in_channels / groups, kernel_size.rows, kernel_size.columns});
  const double bound = 1 / std::sqrt(static_cast<double>(fans(weight).in));
  uniform_(weight, -bound, bound);
  register_parameter("weight", weight);
  if (options.bias) {
    bias = Tensor::empty({out_channels});
    uniform_(bias, -bound, bound);
    register_parameter("bias", bias);
  }
}

Tensor Conv2d::forward(const Tensor& x) {
  return conv2d(x, weight, bias,
                {.stride = options_.stride.array(),
                 .padding = options_.padding.array(),
                 .dilation = options_.dilation.array(),
                 .groups = options_.groups});
}

std::string Conv2d::extra_repr() const {
  std::string out =
      absl::StrCat(weight.size(1) * options_.groups, ", ", weight.size(0),
                   ", kernel_size=", Size2(weight.size(2), weight.size(3)).to_string(),
                   ", stride=", options_.stride.to_string());
  if (options_.padding != 0) absl::StrAppend(&out, ", padding=", options_.padding.to_string());
  if (options_.dilation != 1) absl::StrAppend(&out, ", dilation=", options_.dilation.to_string());
  if (options_.groups != 1) absl::StrAppend(&out, ", groups=", options_.groups);
  if (!bias.defined()) absl::StrAppend(&out, ", bias=false");
  return out;
}

}  // namespace lockstep::nn
