#pragma once

#include <array>
#include <cstdint>

#include "lockstep/kernels/simd.h"
#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Philox4x32-10, a counter-based generator: ten rounds that turn a counter of 128 bits and a key of
// 64 into four numbers of 32 bits (Salmon, Moraes, Dror and Shaw, 2011, "Parallel random numbers:
// as easy as 1, 2, 3"). Words are least significant first.
LOCKSTEP_INLINE std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                                   std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Random fills. Element i in row-major order is a function of (seed, offset + i), the kernel and
// the dtype alone, whatever the strides, the processor's vectors and the number of threads: a
// caller that adds the count to the offset after each fill never draws a number twice.

// Uniform in [0, 1): a multiple of 2^-24 (f32), 2^-53 (f64), 2^-11 (f16), 2^-8 (bf16).
struct Uniform {
  static void cpu(const View& x, uint64_t seed, uint64_t offset);
  static void cuda(const View& x, uint64_t seed, uint64_t offset);
};

// Normal with mean 0 and variance 1 (Box and Muller, 1958), floating dtypes.
struct Normal {
  static void cpu(const View& x, uint64_t seed, uint64_t offset);
  static void cuda(const View& x, uint64_t seed, uint64_t offset);
};

// Integers in [low, high), for every dtype but bool, by the high half of a product with 64 random
// bits: off from even by at most (high - low) / 2^64. REQUIRES: low < high.
struct RandInt {
  static void cpu(const View& x, int64_t low, int64_t high, uint64_t seed, uint64_t offset);
  static void cuda(const View& x, int64_t low, int64_t high, uint64_t seed, uint64_t offset);
};

// 1 with probability p, else 0, in every dtype. A dropout mask.
struct Bernoulli {
  static void cpu(const View& x, double p, uint64_t seed, uint64_t offset);
  static void cuda(const View& x, double p, uint64_t seed, uint64_t offset);
};

// What both devices refuse.
void check_randint(const View& x, int64_t low, int64_t high);
void check_bernoulli(double p);

}  // namespace lockstep::kernels
