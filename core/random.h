#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

// A stream of random numbers: Philox4x32-10 (Salmon et al., 2011), so that the n-th number is a
// function of seed and n alone, the same on every device. Each call takes a fresh range of n.
// Not thread-safe.
struct Generator {
  uint64_t seed = 0;
  uint64_t offset = 0;  // counters of four 32-bit numbers used so far

  // Reserves numbers for `count` elements and returns the offset of the first.
  uint64_t take(int64_t count);
};

// The generator of the calling thread, used where none is named. Its seed is 0 until
// manual_seed(). Ranks that are threads of one process have one each.
Generator& default_generator();

// Starts the calling thread's default generator anew.
void manual_seed(uint64_t seed);

// Uniform in [0, 1); standard normal (Box-Muller); floating dtypes.
Tensor rand(const Shape& shape, TensorOptions options = {}, Generator* generator = nullptr);
Tensor randn(const Shape& shape, TensorOptions options = {}, Generator* generator = nullptr);
Tensor rand_like(const Tensor& like, Generator* generator = nullptr);
Tensor randn_like(const Tensor& like, Generator* generator = nullptr);
// 1 with probability p, else 0; or with the probability that stands at each place of p (floating,
// in [0, 1]), in p's shape and dtype. No gradient.
Tensor bernoulli(double p, const Shape& shape, TensorOptions options = {},
                 Generator* generator = nullptr);
Tensor bernoulli(const Tensor& p, Generator* generator = nullptr);
// Integers in [low, high).
Tensor randint(int64_t low, int64_t high, const Shape& shape, TensorOptions options = {DType::kI64},
               Generator* generator = nullptr);
// A permutation of 0 … n - 1 (i64).
Tensor randperm(int64_t n, Generator* generator = nullptr);

}  // namespace lockstep
