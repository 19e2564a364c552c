// Block quantisation of kernels/cuda/ against the CPU's: bit for bit.
#include "lockstep/kernels/block_quant.h"

#include <limits>

#include "expect_same.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kCounts[] = {0, 1, 31, 257, 5003};
constexpr int64_t kBlocks[] = {1, 16, 100, 256, 6000};

TEST(CudaBlockQuant, CodesScalesAndWhatIsLostAreTheCpus) {
  for (const int64_t count : kCounts) {
    for (const int64_t block : kBlocks) {
      Array values = sample(DType::kF32, {count}, -3, 3, count + block);
      if (count > 100) {
        values.set(count / 2, std::numeric_limits<double>::quiet_NaN());
        values.set(count - 1, -std::numeric_limits<double>::infinity());
      }
      expect_same(
          "quantize",
          {values, empty(DType::kF32, {kernels::quant_blocks(count, block)}),
           empty(DType::kI8, {count})},
          0, 0,
          [&](const Views& v) {
            launch<kernels::BlockQuantize>(v[0].device, v[0], block, v[1], v[2]);
          },
          3);
    }
  }
}

TEST(CudaBlockQuant, MeansOverRanksAreTheCpus) {
  for (const int64_t count : kCounts) {
    for (const int64_t block : kBlocks) {
      const int64_t ranks = 1 + count % 4;
      expect_same(
          "dequantize",
          {sample(DType::kF32, {ranks, kernels::quant_blocks(count, block)}, 0, 2, block),
           sample(DType::kI8, {ranks, count}, -127, 127, count), empty(DType::kF32, {count})},
          2, 0,
          [&](const Views& v) {
            launch<kernels::BlockDequantizeMean>(v[0].device, v[0], v[1], block, v[2]);
          },
          3);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
