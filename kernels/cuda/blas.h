#pragma once

#include <cstdint>

#include "lockstep/kernels/dtype.h"

// Matrix products on CUDA as kernels/cuda/matmul.cu asks for them: cuBLASLt's in blas.cu, a plain
// loop in the emulator of tests/simt/.
namespace lockstep::cuda {

// A batch of matrices in device memory. Strides are in elements; one of `row` and `column` is 1,
// the other at least as much as one row or column is long.
struct Matrix {
  void* data = nullptr;
  int64_t row = 0;     // from an element to the one below
  int64_t column = 0;  // to the one beside
  int64_t batch = 0;   // to the same one of the next matrix; 0: all are one
};

// out (m, n) = a (m, k) b (k, n) + bias for each matrix of the batch, or out + a b where it `adds`,
// or gelu(a b + bias) where it `gelus`, in the tanh form. No size is 0.
struct Product {
  Matrix a, b;
  Matrix out;                  // column is 1
  const void* bias = nullptr;  // (n) without gaps; null: none
  int64_t batches = 1;
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kF32;  // of all; floating
  bool adds = false;          // never with a bias, nor with gelu
  bool gelus = false;
  void* before = nullptr;  // where gelu's inputs go, in out's layout; null: nowhere
};

// Puts the product on the current device's stream. f64 is summed in f64, the rest in f32 and
// rounded once; f32 may be multiplied in TF32 where LOCKSTEP_TF32=1. The same bits each time.
// Returns false where the library has no algorithm that adds this bias or does gelu; out is to be
// written anew then. Throws Error(kDevice) with the library's words.
bool multiply(const Product& product);

}  // namespace lockstep::cuda
