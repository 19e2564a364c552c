#pragma once

#include <span>

#include "lockstep/core/tensor.h"

// Norms and changes of lists of tensors of floating dtypes: one launch for each run of tensors on
// one device, or a few.
namespace lockstep::nn {

// The sum of the squares of all elements of all tensors, in f64. Waits for it.
double squared_norm(std::span<const Tensor> tensors);

// Changes in place that are not recorded, under the name `op`: each tensor gets the bits that mul_,
// or clamp(), would have given it. One that is twice in the list is changed twice.
void scale_all(const char* op, std::span<const Tensor> tensors, double factor);
void clamp_all(const char* op, std::span<const Tensor> tensors, double low, double high);

// scale_all(), then squared_norm(), while memory is gone over once: not finite where an element is
// not, or where f64 does not hold the sum.
double scale_all_norm_squared(const char* op, std::span<const Tensor> tensors, double factor);

}  // namespace lockstep::nn
