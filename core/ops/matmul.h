#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Products of vectors, matrices and batches of matrices, by NumPy's rules: (…, m, k) x (…, k, n)
// gives (…, m, n), leading dimensions broadcast, and a vector stands for a row on the left and a
// column on the right. Floating dtypes.
Tensor matmul(const Tensor& a, const Tensor& b);

// x (…, in) times the transpose of weight (out, in), plus bias (out) unless it is undefined:
// (…, out).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor());

// gelu_tanh(linear(x, weight, bias)), on CUDA in the product's own kernel where cuBLASLt has one.
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor());

}  // namespace lockstep
