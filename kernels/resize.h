#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// A dimension of another size: place i of the new one is made of places low[i] and high[i] of the
// old one, in the shares 1 - weight[i] and weight[i]. Neither low nor high ever descends.
struct Interpolation {
  std::vector<int64_t> low;
  std::vector<int64_t> high;
  std::vector<double> weight;
};

// y = x, interpolated along dimension `axis`; f32 or f64, the shares too, any strides; shapes agree
// but for the axis. REQUIRES: the places are within x, and as many as y has along the axis.
struct Interpolate {
  static void cpu(const View& x, const View& y, int64_t axis, const Interpolation& how);
  static void cuda(const View& x, const View& y, int64_t axis, const Interpolation& how);
};

// gx = what each place of x has a share in, by that share: the transpose of Interpolate.
struct InterpolateBackward {
  static void cpu(const View& g, const View& gx, int64_t axis, const Interpolation& how);
  static void cuda(const View& g, const View& gx, int64_t axis, const Interpolation& how);
};

}  // namespace lockstep::kernels
