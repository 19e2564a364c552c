#pragma once

#include <cstdint>

#include "lockstep/kernels/simd.h"
#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Blocks of 8-bit codes with one scale each, the greatest magnitude of the block / 127 (a linear
// code in the blocks of Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022). A
// value that is not finite makes its block's scale NaN. All views are contiguous, but for the rows
// of scales and codes of several ranks, which may lie apart. The CPU's bits on every device.

// How many blocks of `block` elements `count` elements are.
LOCKSTEP_INLINE int64_t quant_blocks(int64_t count, int64_t block) {
  return (count + block - 1) / block;
}

// values: f32 (count), of which what the codes lose is left, 0 in a block that is not finite.
// scales: f32 (blocks), codes: i8 (count). Reads and writes 4 bytes, and writes 1, an element.
struct BlockQuantize {
  static void cpu(const View& values, int64_t block, const View& scales, const View& codes);
  static void cuda(const View& values, int64_t block, const View& scales, const View& codes);
};

// scales: f32 (ranks, blocks), codes: i8 (ranks, count). mean: f32 (count), the sum of what the
// ranks' codes stand for, in the order of the ranks, times 1 / ranks. Reads a byte a rank, writes 4
// bytes.
struct BlockDequantizeMean {
  static void cpu(const View& scales, const View& codes, int64_t block, const View& mean);
  static void cuda(const View& scales, const View& codes, int64_t block, const View& mean);
};

}  // namespace lockstep::kernels
