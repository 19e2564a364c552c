#pragma once

#include <array>

#include "lockstep/core/tensor.h"

namespace lockstep {

struct Pool2dOptions {
  std::array<int64_t, 2> kernel = {2, 2};    // rows, columns; likewise below
  std::array<int64_t, 2> stride = {0, 0};    // 0: the kernel's size
  std::array<int64_t, 2> padding = {0, 0};   // at most half the kernel
  std::array<int64_t, 2> dilation = {1, 1};  // of max_pool2d alone
  bool count_include_pad = true;             // of avg_pool2d alone
};

// The largest or the mean value of each window of x (N, C, H, W): (N, C, H', W'). A NaN in a window
// is its maximum. The result keeps x's memory order.
Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options = {});

}  // namespace lockstep
