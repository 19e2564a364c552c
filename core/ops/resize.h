#pragma once

#include <array>

#include "lockstep/core/tensor.h"

namespace lockstep {

// Images of another size. x is (N, C, H, W), floating; the result (N, C, size[0], size[1]).

// The mean of each of size[0] by size[1] windows, which cover the image as evenly as whole elements
// can: window i of H rows is [floor(i H / H'), ceil((i + 1) H / H')).
Tensor adaptive_avg_pool2d(const Tensor& x, const std::array<int64_t, 2>& size);

enum class UpsampleMode { kNearest, kBilinear };

// Nearest: row i comes from row floor(i H / H'). Bilinear: from the two rows around
// (i + 1/2) H / H' - 1/2, or, with align_corners, around i (H - 1) / (H' - 1), weighed by distance;
// columns likewise. Also makes images smaller. 16-bit floats are computed in f32.
Tensor upsample2d(const Tensor& x, const std::array<int64_t, 2>& size,
                  UpsampleMode mode = UpsampleMode::kNearest, bool align_corners = false);

}  // namespace lockstep
