#include "lockstep/core/ops/resize.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/index.h"
#include "lockstep/core/ops/matmul.h"
#include "lockstep/core/ops/pool.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/resize.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

void check_arguments(std::string_view op, const Tensor& x, const std::array<int64_t, 2>& size) {
  check(x.dim() == 4 && is_floating(x.dtype()) && x.size(2) > 0 && x.size(3) > 0 && size[0] > 0 &&
            size[1] > 0,
        op, [&] {
          return str_cat("want a floating x (N, C, H, W) and a size over 0, got shape ",
                         to_string(x.shape()), " and (", size[0], ", ", size[1], ")");
        });
}

DType at_least_f32(DType dtype) { return size_of(dtype) == 2 ? DType::kF32 : dtype; }

// (to, from): row i holds the weights of window i's mean.
Tensor window_means(int64_t from, int64_t to, const TensorOptions& options) {
  std::vector<double> weights(static_cast<size_t>(from * to), 0.0);
  for (int64_t i = 0; i < to; ++i) {
    const int64_t begin = i * from / to;
    const int64_t end = ((i + 1) * from + to - 1) / to;
    for (int64_t k = begin; k < end; ++k) {
      weights[static_cast<size_t>(i * from + k)] = 1.0 / static_cast<double>(end - begin);
    }
  }
  return Tensor::from(weights, {to, from}).to(options.dtype).to(options.device);
}

// The two source places around each of `to` places.
kernels::Interpolation interpolation(int64_t from, int64_t to, bool align_corners) {
  kernels::Interpolation out;
  for (int64_t i = 0; i < to; ++i) {
    const auto at = static_cast<double>(i);
    double place;
    if (align_corners) {
      place = to > 1 ? at * static_cast<double>(from - 1) / static_cast<double>(to - 1) : 0;
    } else {
      place = (at + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5;
    }
    place = std::clamp(place, 0.0, static_cast<double>(from - 1));
    out.low.push_back(static_cast<int64_t>(std::floor(place)));
    out.high.push_back(std::min(out.low.back() + 1, from - 1));
    out.weight.push_back(place - std::floor(place));
  }
  return out;
}

// Each of `size` places along `dim` from two of x's, or the transpose of that: each is the other's
// gradient.
Tensor resized(const Tensor& x, int64_t dim, int64_t size, bool transposed,
               const std::shared_ptr<const kernels::Interpolation>& how) {
  Shape shape = x.shape();
  shape[static_cast<size_t>(dim)] = size;
  Tensor y = Tensor::empty(shape, x.options());
  if (transposed) {
    launch<kernels::InterpolateBackward>(x.device(), x.view(), y.view(), dim, *how);
  } else {
    launch<kernels::Interpolate>(x.device(), x.view(), y.view(), dim, *how);
  }
  return record("interpolate", y, {x}, [dim, from = x.size(dim), transposed, how](const Tensor& g) {
    return Tensors{resized(g, dim, from, !transposed, how)};
  });
}

Tensor interpolate(const Tensor& x, int64_t dim, int64_t to, bool align_corners) {
  return resized(
      x, dim, to, false,
      std::make_shared<kernels::Interpolation>(interpolation(x.size(dim), to, align_corners)));
}

}  // namespace

Tensor adaptive_avg_pool2d(const Tensor& x, const std::array<int64_t, 2>& size) {
  check_arguments("adaptive_avg_pool2d", x, size);
  if (x.size(2) % size[0] == 0 && x.size(3) % size[1] == 0) {
    return avg_pool2d(x, {.kernel = {x.size(2) / size[0], x.size(3) / size[1]}});
  }
  const Tensor wide = to(x, at_least_f32(x.dtype()));
  const Tensor rows = window_means(x.size(2), size[0], wide.options());
  const Tensor columns = window_means(x.size(3), size[1], wide.options());
  return to(matmul(matmul(rows, wide), columns.t()), x.dtype());
}

Tensor upsample2d(const Tensor& x, const std::array<int64_t, 2>& size, UpsampleMode mode,
                  bool align_corners) {
  check_arguments("upsample2d", x, size);
  Tensor y = mode == UpsampleMode::kBilinear ? to(x, at_least_f32(x.dtype())) : x;
  for (size_t axis : {0, 1}) {
    const auto dim = static_cast<int64_t>(2 + axis);
    const int64_t from = x.size(dim);
    if (mode == UpsampleMode::kBilinear) {
      y = interpolate(y, dim, size[axis], align_corners);
      continue;
    }
    check(!align_corners, "upsample2d", "want align_corners with kBilinear alone");
    std::vector<int64_t> places;
    for (int64_t i = 0; i < size[axis]; ++i) places.push_back(i * from / size[axis]);
    y = index_select(y, dim, Tensor::from(places, {size[axis]}).to(x.device()));
  }
  return to(y, x.dtype());
}

}  // namespace lockstep
