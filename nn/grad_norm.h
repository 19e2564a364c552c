#pragma once

#include <span>

#include "lockstep/core/tensor.h"

namespace lockstep::nn {

// The sum of the squares of all elements of all tensors, which are of floating dtypes; in f64. One
// launch for each run of tensors on one device; waits for it.
double squared_norm(std::span<const Tensor> tensors);

}  // namespace lockstep::nn
