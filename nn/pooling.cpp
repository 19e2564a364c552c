#include "lockstep/nn/pooling.h"

#include "absl/strings/str_cat.h"
#include "lockstep/core/ops/pool.h"

namespace lockstep::nn {
namespace {

void check_window(const char* op, Size2 kernel_size, Size2 stride, Size2 padding, Size2 dilation) {
  check(kernel_size.at_least(1) && stride.at_least(1) && dilation.at_least(1) &&
            padding.at_least(0) && 2 * padding.rows <= kernel_size.rows &&
            2 * padding.columns <= kernel_size.columns,
        op, [&] {
          return absl::StrCat(
              "want kernel_size, stride and dilation of 1 and more and padding of "
              "0 to half the kernel, got ",
              kernel_size.to_string(), ", ", stride.to_string(), ", ", dilation.to_string(),
              " and ", padding.to_string());
        });
}

std::string describe(Size2 kernel_size, Size2 stride, Size2 padding) {
  return absl::StrCat("kernel_size=", kernel_size.to_string(), ", stride=", stride.to_string(),
                      ", padding=", padding.to_string());
}

}  // namespace

MaxPool2d::MaxPool2d(Size2 kernel_size, const MaxPool2dOptions& options)
    : kernel_size_(kernel_size), stride_(options.stride.value_or(kernel_size)), options_(options) {
  check_window("MaxPool2d", kernel_size_, stride_, options.padding, options.dilation);
}

Tensor MaxPool2d::forward(const Tensor& x) {
  return max_pool2d(x, {.kernel = kernel_size_.array(),
                        .stride = stride_.array(),
                        .padding = options_.padding.array(),
                        .dilation = options_.dilation.array()});
}

std::string MaxPool2d::extra_repr() const {
  return absl::StrCat(describe(kernel_size_, stride_, options_.padding),
                      ", dilation=", options_.dilation.to_string());
}

AvgPool2d::AvgPool2d(Size2 kernel_size, const AvgPool2dOptions& options)
    : kernel_size_(kernel_size), stride_(options.stride.value_or(kernel_size)), options_(options) {
  check_window("AvgPool2d", kernel_size_, stride_, options.padding, 1);
}

Tensor AvgPool2d::forward(const Tensor& x) {
  return avg_pool2d(x, {.kernel = kernel_size_.array(),
                        .stride = stride_.array(),
                        .padding = options_.padding.array(),
                        .count_include_pad = options_.count_include_pad});
}

std::string AvgPool2d::extra_repr() const {
  return describe(kernel_size_, stride_, options_.padding);
}

}  // namespace lockstep::nn
