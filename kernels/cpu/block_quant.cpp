#include "lockstep/kernels/block_quant.h"

#include <algorithm>

#include "lockstep/kernels/block_quant_math.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

constexpr int64_t kGrain = 16384;  // elements that are worth a thread

}  // namespace

void BlockQuantize::cpu(const View& values, int64_t block, const View& scales, const View& codes) {
  auto* x = values.as<float>();
  auto* code = codes.as<int8_t>();
  auto* scale = scales.as<float>();
  const int64_t count = values.numel();
  const int64_t blocks_a_thread = std::max<int64_t>(kGrain / block, 1);
  parallel_for(quant_blocks(count, block), blocks_a_thread, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = b * block;
      const int64_t end = std::min(count, begin + block);
      float greatest = 0;
      for (int64_t i = begin; i < end; ++i) {
        greatest = greater_magnitude(greatest, std::abs(x[i]));
      }
      scale[b] = quant_scale(greatest);
      for (int64_t i = begin; i < end; ++i) code[i] = quant_code(x[i], scale[b]);
    }
  });
}

void BlockDequantizeMean::cpu(const View& scales, const View& codes, int64_t block,
                              const View& mean) {
  const int64_t ranks = codes.shape[0];
  const float share = 1 / static_cast<float>(ranks);
  auto* y = mean.as<float>();
  parallel_for(mean.numel(), kGrain, [&](int64_t first, int64_t last) {
    std::fill(y + first, y + last, 0.0f);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto* code = codes.as<int8_t>() + rank * codes.strides[0];
      const auto* scale = scales.as<float>() + rank * scales.strides[0];
      for (int64_t i = first; i < last; ++i) {
        y[i] += static_cast<float>(code[i]) * scale[i / block];
      }
    }
    for (int64_t i = first; i < last; ++i) y[i] *= share;
  });
}

}  // namespace lockstep::kernels
