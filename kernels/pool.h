#pragma once

#include <array>

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Windows over the planes of (N, C, H, W); rows, then columns. Floor mode:
// H' = (H + 2 padding - dilation (kernel - 1) - 1) / stride + 1.
// REQUIRES: kernel, stride, dilation >= 1, 0 <= padding <= kernel / 2.
struct Pool2dParams {
  std::array<int64_t, 2> kernel = {2, 2};
  std::array<int64_t, 2> stride = {2, 2};
  std::array<int64_t, 2> padding = {0, 0};
  std::array<int64_t, 2> dilation = {1, 1};  // of the maximum alone
  bool count_include_pad = true;             // of the average alone: padding counts as zeros
};

// All of these take floating dtypes and any strides. Channels-last memory is fast; windows over
// other orders go through a copy in that order.

// y (N, C, H', W') is the largest value of each window of x, places (i32, y's shape) where in its
// plane that stands: h * W + w, the first of equals. A NaN in a window is its maximum.
// Throws Error(kInvalidArgument) where H * W does not fit places.
struct MaxPool2d {
  static void cpu(const View& x, const View& y, const View& places, const Pool2dParams& params);
  static void cuda(const View& x, const View& y, const View& places, const Pool2dParams& params);
};

// gx (N, C, H, W) = 0, and each element of g (N, C, H', W') added at its place; params are those of
// the forward that gave the places. Throws Error(kInvalidArgument) that names a place outside the
// plane, on the CPU; cuda() passes over places outside of their windows, so as not to wait for a
// look at what the forward wrote.
struct MaxPool2dBackward {
  static void cpu(const View& g, const View& places, const View& gx, const Pool2dParams& params);
  static void cuda(const View& g, const View& places, const View& gx, const Pool2dParams& params);
};

// y (N, C, H', W') = the elements of x (N, C, H, W) at the places: the transpose of the backward.
// Throws Error(kInvalidArgument) that names a place outside the plane.
struct MaxPool2dGather {
  static void cpu(const View& x, const View& places, const View& y);
  static void cuda(const View& x, const View& places, const View& y);
};

// y is the mean of each window of x.
struct AvgPool2d {
  static void cpu(const View& x, const View& y, const Pool2dParams& params);
  static void cuda(const View& x, const View& y, const Pool2dParams& params);
};

// gx is the transpose of AvgPool2d applied to g.
struct AvgPool2dBackward {
  static void cpu(const View& g, const View& gx, const Pool2dParams& params);
  static void cuda(const View& g, const View& gx, const Pool2dParams& params);
};

// What both devices refuse: planes that places cannot count, and windows that see nothing but
// padding, as widely dilated ones can.
void check_max_pool2d(const View& x, const View& y, const Pool2dParams& params);

}  // namespace lockstep::kernels
