#pragma once

#include "lockstep/core/tensor.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep {

// Element-wise ops, one for each entry of the lists in kernels/elementwise.h. Operands of a binary
// op have one dtype and device and broadcast (NumPy's rule); a number stands for a tensor of one
// element. The result keeps the memory order of its first operand of full shape. Throws
// Error(kInvalidArgument) that names the op.

#define LOCKSTEP_DECLARE(Op, function) Tensor function(const Tensor& x);
LOCKSTEP_UNARY_OPS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

#define LOCKSTEP_DECLARE(Op, function)               \
  Tensor function(const Tensor& a, const Tensor& b); \
  Tensor function(const Tensor& a, double b);        \
  Tensor function(double a, const Tensor& b);
LOCKSTEP_BINARY_OPS(LOCKSTEP_DECLARE)
LOCKSTEP_COMPARE_OPS(LOCKSTEP_DECLARE)  // results are bool and carry no gradient
#undef LOCKSTEP_DECLARE

// a where `condition` (bool) holds, else b; all three broadcast.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, double b);
Tensor where(const Tensor& condition, double a, const Tensor& b);

// x, but no less than `low` and no more than `high` (which may be infinite); the gradient is 0
// outside. NaN stays NaN.
Tensor clamp(const Tensor& x, double low, double high);
Tensor clamp_min(const Tensor& x, double low);
Tensor clamp_max(const Tensor& x, double high);

inline Tensor leaky_relu(const Tensor& x) { return leaky_relu(x, 0.01); }

// Of bool tensors, by the values' truth; they broadcast.
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);

// bool tensors that say where a floating x is NaN, is infinite, is neither. No gradient.
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);

// A tensor of one element with x's dtype and device.
Tensor constant_like(const Tensor& x, double value);

inline Tensor operator-(const Tensor& x) { return neg(x); }

#define LOCKSTEP_OPERATOR(symbol, function)                                                  \
  inline Tensor operator symbol(const Tensor& a, const Tensor& b) { return function(a, b); } \
  inline Tensor operator symbol(const Tensor& a, double b) { return function(a, b); }        \
  inline Tensor operator symbol(double a, const Tensor& b) { return function(a, b); }
LOCKSTEP_OPERATOR(+, add)
LOCKSTEP_OPERATOR(-, sub)
LOCKSTEP_OPERATOR(*, mul)
LOCKSTEP_OPERATOR(/, div)
LOCKSTEP_OPERATOR(<, lt)
LOCKSTEP_OPERATOR(<=, le)
LOCKSTEP_OPERATOR(>, gt)
LOCKSTEP_OPERATOR(>=, ge)
#undef LOCKSTEP_OPERATOR

}  // namespace lockstep
