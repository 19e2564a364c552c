// Each function of kernels/cuda/ in which threads of a block meet, called as a kernel calls it,
// twice, so that a second call may overtake the first: what prove_barriers.py proves to be free of
// races.
#include "lockstep/kernels/cuda/scan.cu"

#include "lockstep/kernels/cuda/attention.cuh"
#include "lockstep/kernels/cuda/reduce.cuh"

namespace {

using lockstep::cuda::kThreads;

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// The least of what reduce_kernel needs of a fold.
struct SumFold {
  using State = float;
  __device__ static State combine(State a, State b) { return a + b; }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) block_reduce(const float* x, float* y) {
  const float* mine = x + blockIdx.x * 2 * kThreads + threadIdx.x;
  const float first = lockstep::cuda::block_reduce(mine[0], 0.0f, Sum());
  const float second = lockstep::cuda::block_reduce(mine[kThreads] + first, 0.0f, Sum());
  if (threadIdx.x == 0) y[blockIdx.x] = second;
}

extern "C" __global__ void __launch_bounds__(kThreads) scan_block(const float* x, float* y) {
  const unsigned at = blockIdx.x * 2 * kThreads + threadIdx.x;
  const auto first = lockstep::kernels::scan_block(x[at]);
  const auto second = lockstep::kernels::scan_block(x[at + kThreads] + first.all);
  y[at] = first.up_to;
  y[at + kThreads] = second.up_to;
}

// As reduce_kernel does, by 32 columns of 8 threads.
extern "C" __global__ void __launch_bounds__(kThreads) fold_rows(const float* x, float* y) {
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned at = (blockIdx.x * 2 + i) * kThreads + threadIdx.y * blockDim.x + threadIdx.x;
    const float sum = lockstep::cuda::fold_rows<SumFold>(x[at]);
    if (threadIdx.y == 0) y[(blockIdx.x * 2 + i) * blockDim.x + threadIdx.x] = sum;
    __syncthreads();  // the states have been read
  }
}

// Two tiles of keys, as attention_kernel walks them.
extern "C" __global__ void __launch_bounds__(kThreads)
    multiply(const float* q, const float* k, const float* v, float* y) {
  using namespace lockstep::cuda::attention;
  constexpr int64_t kWidth = 32;
  LOCKSTEP_SHARED(float, a_part, kDepth* kPitch<float>);
  LOCKSTEP_SHARED(float, b_part, kDepth* kPitch<float>);
  LOCKSTEP_SHARED(float, tile, kSide<float>* kPitch<float>);
  const int tx = threadIdx.x % kLine, ty = threadIdx.x / kLine;
  const auto matrix = [](const float* data) {
    return Matrix<const float>{data, 2 * kSide<float>, kWidth, kWidth, 1};
  };
  Mine<float> out;
  for (int64_t first = 0; first < 2 * kSide<float>; first += kSide<float>) {
    Mine<float> scores;
    multiply_rows(scores, matrix(q), 0, matrix(k), first, a_part, b_part);
    for (int r = 0; r < kPer<float>; ++r) {
      for (int c = 0; c < kPer<float>; ++c) {
        tile[(ty + kLine * r) * kPitch<float> + tx + kLine * c] = scores.at[r][c];
      }
    }
    multiply_tile(out, tile, matrix(v), first, 0, b_part);
  }
  for (int r = 0; r < kPer<float>; ++r) y[(ty + kLine * r) * kLine + tx] = out.at[r][0];
}
