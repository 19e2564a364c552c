// Block quantisation: the CPU's bits (built without fused multiply-adds). A warp takes a block of
// values.
#include "lockstep/kernels/block_quant.h"

#include "lockstep/kernels/block_quant_math.h"
#include "lockstep/kernels/cuda/launch.cuh"

namespace lockstep::kernels {
namespace {

using cuda::kThreads;
using cuda::kWarp;

struct GreaterMagnitude {
  __device__ float operator()(float a, float b) const { return greater_magnitude(a, b); }
};

__global__ void __launch_bounds__(kThreads)
    quantize_kernel(float* x, int64_t count, int64_t block, float* scales, int8_t* codes) {
  const unsigned lane = threadIdx.x % kWarp;
  const int64_t blocks = quant_blocks(count, block);
  const int64_t step = int64_t{gridDim.x} * (kThreads / kWarp);
  for (int64_t b = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp; b < blocks;
       b += step) {
    const int64_t begin = b * block;
    const int64_t end = begin + block < count ? begin + block : count;
    float greatest = 0;
    for (int64_t i = begin + lane; i < end; i += kWarp) {
      greatest = greater_magnitude(greatest, fabsf(x[i]));
    }
    const float scale = quant_scale(cuda::warp_reduce(greatest, GreaterMagnitude()));
    if (lane == 0) scales[b] = scale;
    for (int64_t i = begin + lane; i < end; i += kWarp) codes[i] = quant_code(x[i], scale);
  }
}

__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const float* scales, int64_t scale_step, const int8_t* codes,
                      int64_t code_step, int64_t ranks, int64_t block, int64_t count, float* mean) {
  const float share = 1 / static_cast<float>(ranks);
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const int64_t b = i / block;
    float sum = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      sum += static_cast<float>(codes[rank * code_step + i]) * scales[rank * scale_step + b];
    }
    mean[i] = sum * share;
  }
}

}  // namespace

void BlockQuantize::cuda(const View& values, int64_t block, const View& scales, const View& codes) {
  const int64_t count = values.numel();
  if (count == 0) return;
  cuda::launch_kernel(cuda::grid_for(quant_blocks(count, block), kThreads / kWarp), dim3(kThreads),
                      quantize_kernel, values.as<float>(), count, block, scales.as<float>(),
                      codes.as<int8_t>());
}

void BlockDequantizeMean::cuda(const View& scales, const View& codes, int64_t block,
                               const View& mean) {
  const int64_t count = mean.numel();
  if (count == 0) return;
  cuda::launch_kernel(cuda::grid_for(count), dim3(kThreads), dequantize_kernel, scales.as<float>(),
                      scales.strides[0], codes.as<int8_t>(), codes.strides[0], codes.shape[0],
                      block, count, mean.as<float>());
}

}  // namespace lockstep::kernels
