// CUDA's kernel language under the emulator: each form gives what a GPU gives.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "simt/simt.h"

namespace {

using testing::Each;
using testing::ElementsAre;

constexpr unsigned kAll = 0xffffffffu;
constexpr unsigned kSome = 0x9a3c5a71u;  // lanes that meet without the others

constexpr bool is_in(unsigned mask, unsigned lane) { return (mask >> lane & 1) != 0; }

// What a kernel makes of memory, which it is given before its other arguments.
template <class T, class... P, class... A>
std::vector<T> run(unsigned grid, unsigned block, void (*kernel)(T*, P...), std::vector<T> memory,
                   A... arguments) {
  const size_t bytes = memory.size() * sizeof(T);
  T* on_device = nullptr;
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&on_device), bytes), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(on_device, memory.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
  const cudaLaunchConfig_t config = {grid, block, block * sizeof(int), nullptr, nullptr, 0};
  EXPECT_EQ(cudaLaunchKernelEx(&config, kernel, on_device, arguments...), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(memory.data(), on_device, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(cudaFree(on_device), cudaSuccess);
  EXPECT_EQ(simt::take_report(), "");
  return memory;
}

// ---- Warps ----

__global__ void vote(unsigned* out, unsigned mask) {
  const unsigned t = threadIdx.x;
  if (!is_in(mask, t)) return;
  out[t] = __ballot_sync(mask, t % 3 == 0);
  out[32 + t] = __any_sync(mask, t == 30) + 2 * __any_sync(mask, t == 31) +
                4 * __all_sync(mask, 1) + 8 * __all_sync(mask, t != 31);
}

TEST(Language, WarpsVote) {
  for (const unsigned mask : {kAll, kSome, 1u << 31, 1u << 30}) {
    const std::vector<unsigned> out = run(1, 32, vote, std::vector<unsigned>(64), mask);
    const bool has_30 = is_in(mask, 30), has_31 = is_in(mask, 31);
    for (unsigned t = 0; t < 32; ++t) {
      EXPECT_EQ(out[t], is_in(mask, t) ? 0x49249249u & mask : 0u);
      EXPECT_EQ(out[32 + t], is_in(mask, t) ? has_30 + 2u * has_31 + 4u + 8u * !has_31 : 0u);
    }
  }
}

// Numbers of T that differ in their highest bits alone.
template <class T>
__global__ void match(unsigned* out, unsigned mask, unsigned group) {
  const unsigned t = threadIdx.x;
  if (!is_in(mask, t)) return;
  const T value = static_cast<T>(T{1} + (static_cast<T>(t / group) << (8 * sizeof(T) - 6)));
  out[t] = __match_any_sync(mask, value);
  int all = -1;
  out[32 + t] = __match_all_sync(mask, value, &all);
  out[64 + t] = static_cast<unsigned>(all);
}

TEST(Language, WarpsMatch) {
  for (const auto kernel : {match<unsigned>, match<unsigned long long>}) {
    for (const unsigned mask : {kAll, kSome}) {
      for (const unsigned group : {1u, 8u, 32u}) {
        const std::vector<unsigned> out =
            run(1, 32, kernel, std::vector<unsigned>(96), mask, group);
        for (unsigned t = 0; t < 32; ++t) {
          if (!is_in(mask, t)) continue;
          unsigned same = 0;
          for (unsigned k = 0; k < 32; ++k) same |= (k / group == t / group ? 1u : 0u) << k;
          EXPECT_EQ(out[t], same & mask);
          EXPECT_EQ(out[32 + t], group == 32 ? mask : 0u);
          EXPECT_EQ(out[64 + t], group == 32 ? 1u : 0u);
        }
      }
    }
  }
}

template <class T>
__global__ void shuffle(T* out, int width, unsigned by) {
  const unsigned t = threadIdx.x;
  const auto value = static_cast<T>(t + 0.25);
  out[t] = __shfl_sync(kAll, value, static_cast<int>(by), width);
  out[32 + t] = __shfl_up_sync(kAll, value, by, width);
  out[64 + t] = __shfl_down_sync(kAll, value, by, width);
  out[96 + t] = __shfl_xor_sync(kAll, value, static_cast<int>(by), width);
  if (width < 32) return;
  out[128 + t] = __shfl_sync(kAll, value, static_cast<int>(by));
  out[160 + t] = __shfl_up_sync(kAll, value, by);
  out[192 + t] = __shfl_down_sync(kAll, value, by);
  out[224 + t] = __shfl_xor_sync(kAll, value, static_cast<int>(by));
}

template <class T>
void expect_shuffles() {
  for (unsigned width = 1; width <= 32; width *= 2) {
    for (const unsigned by : {0u, 1u, 3u, 8u, 17u, 31u}) {
      const std::vector<T> out =
          run(1, 32, shuffle<T>, std::vector<T>(256), static_cast<int>(width), by);
      for (unsigned i = 0; i < (width == 32 ? 256 : 128); ++i) {
        const unsigned t = i % 32, first = t / width * width, form = i / 32 % 4;
        unsigned from = t;
        if (form == 0) from = first + by % width;
        if (form == 1 && t >= first + by) from = t - by;
        if (form == 2 && t + by < first + width) from = t + by;
        if (form == 3 && (t ^ by) < first + width) from = t ^ by;  // of groups before it too
        EXPECT_EQ(out[i], static_cast<T>(from + 0.25)) << width << " " << by << " " << i;
      }
    }
  }
}

TEST(Language, WarpsShuffle) {
  expect_shuffles<int>();
  expect_shuffles<float>();
  expect_shuffles<double>();
  expect_shuffles<__half>();
}

template <class T>
__global__ void reduce(T* out, unsigned mask) {
  const unsigned t = threadIdx.x;
  if (!is_in(mask, t)) return;
  const auto value = static_cast<T>(3 * t) - 40;
  out[t] = __reduce_add_sync(mask, value);
  out[32 + t] = __reduce_min_sync(mask, value);
  out[64 + t] = __reduce_max_sync(mask, value);
  out[96 + t] = __reduce_and_sync(mask, value);
  out[128 + t] = __reduce_or_sync(mask, value);
  out[160 + t] = __reduce_xor_sync(mask, value);
}

template <class T>
void expect_reductions() {
  for (const unsigned mask : {kAll, kSome, 1u << 7}) {
    const std::vector<T> out = run(1, 32, reduce<T>, std::vector<T>(192), mask);
    T want[] = {
        0, std::numeric_limits<T>::max(), std::numeric_limits<T>::min(), static_cast<T>(kAll), 0,
        0};
    for (unsigned t = 0; t < 32; ++t) {
      if (!is_in(mask, t)) continue;
      const auto value = static_cast<T>(3 * t) - 40;
      want[0] += value;
      want[1] = std::min(want[1], value);
      want[2] = std::max(want[2], value);
      want[3] &= value;
      want[4] |= value;
      want[5] ^= value;
    }
    for (unsigned i = 0; i < 192; ++i) EXPECT_EQ(out[i], is_in(mask, i % 32) ? want[i / 32] : T{0});
  }
}

TEST(Language, WarpsReduce) {
  expect_reductions<int>();
  expect_reductions<unsigned>();
}

// Halves of a warp hand numbers on through memory, each for itself; then all do.
__global__ void pass_on(int* out) {
  SIMT_STATIC_SHARED(int, shared, 32);
  const unsigned t = threadIdx.x;
  shared[t] = static_cast<int>(t);
  __syncwarp(t < 16 ? 0xffffu : 0xffff0000u);
  out[t] = shared[t ^ 15];
  __syncwarp();
  shared[t] = out[t];
  __syncwarp();
  out[t] = shared[31 - t];
}

TEST(Language, WarpsMeet) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    simt::seed(seed);
    const std::vector<int> out = run(1, 32, pass_on, std::vector<int>(32));
    for (int t = 0; t < 32; ++t) EXPECT_EQ(out[static_cast<unsigned>(t)], (31 - t) ^ 15);
  }
}

// ---- Blocks ----

__global__ void block_ops(int* out) {
  SIMT_DYNAMIC_SHARED(int, dynamic);
  dynamic[threadIdx.x] = static_cast<int>(threadIdx.x);
  const int count = __syncthreads_count(threadIdx.x % 3 == 0);
  const int neighbour = dynamic[(threadIdx.x + 1) % blockDim.x];
  atomicMax(&out[0], count);
  atomicAdd(&out[1], __syncthreads_and(threadIdx.x < 70));
  atomicAdd(&out[2], __syncthreads_and(threadIdx.x < 69));
  atomicAdd(&out[3], __syncthreads_or(threadIdx.x == 69));
  atomicAdd(&out[4], __syncthreads_or(threadIdx.x == 70));
  atomicAdd(&out[5], neighbour);
}

TEST(Language, BlocksCountAndShareMemory) {
  EXPECT_THAT(run(3, 70, block_ops, std::vector<int>(6)),
              ElementsAre(24, 210, 0, 210, 0, 3 * 69 * 70 / 2));
}

// The blocks of a grid meet by a counter: each waits until all have come.
__global__ void grid_barrier(unsigned* counter) {
  unsigned* out = counter + 1;
  if (threadIdx.x == 0) {
    out[1 + blockIdx.x] = blockIdx.x;
    __threadfence();
    atomicAdd(counter, 1u);
    while (atomicAdd(counter, 0u) < gridDim.x) __nanosleep(100);
    __threadfence();
  }
  __syncthreads();
  unsigned sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) sum += out[1 + b];
  atomicMax(out, sum);
}

TEST(Language, BlocksThatSleepWaitForEachOther) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    simt::seed(seed);
    EXPECT_EQ(run(7, 33, grid_barrier, std::vector<unsigned>(9))[1], 21u);
  }
}

// ---- Atomics ----

constexpr unsigned kBlocks = 3, kLanes = 70, kTotal = kBlocks * kLanes;

// What a lane brings: in the upper half of T, so that no half may be lost.
template <class T>
constexpr T part(unsigned i) {
  return static_cast<T>(static_cast<T>(i) << (4 * sizeof(T)));
}

template <class T>
__global__ void count_atomically(T* out) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const T mine = part<T>(i ^ 85);
  atomicAdd(&out[0], mine);
  atomicSub(&out[1], mine);
  atomicMin(&out[2], mine);
  atomicMax(&out[3], mine);
  atomicAnd(&out[4], static_cast<T>(~mine));
  atomicOr(&out[5], mine);
  atomicXor(&out[6], mine);
  atomicAdd(&out[7], atomicExch(&out[8], mine));
  T seen = atomicCAS(&out[9], 0, 0);
  for (T old = static_cast<T>(~seen); old != seen;) {
    old = seen;
    seen = atomicCAS(&out[9], old, static_cast<T>(old + mine));
  }
  out[11 + atomicAdd(&out[10], 1)] += 1;  // each gets another number
}

template <class T>
void expect_atomics() {
  std::vector<T> memory(11 + kTotal);
  memory[2] = part<T>(1000);
  memory[4] = static_cast<T>(~T{0});
  T sum = 0, least = memory[2], most = 0, bits = 0, odd = 0;
  for (unsigned i = 0; i < kTotal; ++i) {
    const T mine = part<T>(i ^ 85);
    sum = static_cast<T>(sum + mine);
    least = std::min(least, mine);
    most = std::max(most, mine);
    bits = static_cast<T>(bits | mine);
    odd = static_cast<T>(odd ^ mine);
  }
  const std::vector<T> out = run(kBlocks, kLanes, count_atomically<T>, memory);
  EXPECT_EQ(out[0], sum);
  EXPECT_EQ(out[1], static_cast<T>(-sum));
  EXPECT_EQ(out[2], least);
  EXPECT_EQ(out[3], most);
  EXPECT_EQ(out[4], static_cast<T>(~bits));
  EXPECT_EQ(out[5], bits);
  EXPECT_EQ(out[6], odd);
  EXPECT_EQ(out[7] + out[8], sum);
  EXPECT_EQ(out[9], sum);
  EXPECT_EQ(out[10], static_cast<T>(kTotal));
  EXPECT_THAT(std::vector<T>(out.begin() + 11, out.end()), Each(T{1}));
}

TEST(Language, AtomicsOnIntegersLoseNothing) {
  expect_atomics<int>();
  expect_atomics<unsigned>();
  expect_atomics<long long>();
  expect_atomics<unsigned long long>();
}

__global__ void wrap(unsigned* out) {
  atomicInc(&out[0], 99u);
  atomicDec(&out[1], 99u);
}

TEST(Language, AtomicsWrapAround) {
  EXPECT_THAT(run(kBlocks, kLanes, wrap, std::vector<unsigned>(2)),
              ElementsAre(kTotal % 100, 100 - kTotal % 100));
}

template <class T>
__global__ void add_ones(T* out) {
  atomicAdd(&out[1], T{1.0f});
  atomicAdd(&out[1], -atomicExch(&out[0], T{1.0f}));
}
__global__ void add_pairs(__half2* out) { atomicAdd(out, __floats2half2_rn(1.0f, 0.5f)); }
__global__ void count_by_cas(unsigned short* out) {
  unsigned short seen = atomicCAS(out, 0, 0);
  for (unsigned short old = static_cast<unsigned short>(~seen); old != seen;) {
    old = seen;
    seen = atomicCAS(out, old, static_cast<unsigned short>(old + 300));
  }
}

// The first exchange gives 0, and each other one a 1.
template <class T>
void expect_sum() {
  EXPECT_THAT(run(kBlocks, kLanes, add_ones<T>, std::vector<T>(2)), ElementsAre(1.0f, 1.0f));
}

TEST(Language, AtomicsOnFloatsAndOf16BitsLoseNothing) {
  expect_sum<float>();
  expect_sum<double>();
  expect_sum<__half>();
  expect_sum<__nv_bfloat16>();
  const __half2 pair = run(kBlocks, kLanes, add_pairs, std::vector<__half2>(1))[0];
  EXPECT_EQ(__low2float(pair), 210.0f);
  EXPECT_EQ(__high2float(pair), 105.0f);
  EXPECT_THAT(run(kBlocks, kLanes, count_by_cas, std::vector<unsigned short>(2)),
              ElementsAre(kTotal * 300, 0));
}

// ---- Types of 16 bits ----

TEST(Language, HalvesRoundToNearestEven) {
  const auto bits = [](float x) { return __half_as_ushort(__float2half(x)); };
  EXPECT_EQ(bits(1.0f), 0x3c00);
  EXPECT_EQ(bits(-2.0f), 0xc000);
  EXPECT_EQ(bits(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(bits(1.0f + 0x3p-11f), 0x3c02);
  EXPECT_EQ(bits(0x1.ffcp15f), 0x7bff);
  EXPECT_EQ(bits(0x1.ffdffep15f), 0x7bff);
  EXPECT_EQ(bits(0x1.ffep15f), 0x7c00);
  EXPECT_EQ(bits(0x1p-24f), 0x0001);
  EXPECT_EQ(bits(-0x1p-25f), 0x8000);
  EXPECT_EQ(bits(0x1.ffffp-15f), 0x0400);
  EXPECT_EQ(bits(NAN), 0x7fff);
  for (unsigned i = 0; i < 65536; ++i) {
    const __half x = __ushort_as_half(static_cast<unsigned short>(i));
    EXPECT_EQ(__hisnan(x), (i & 0x7fff) > 0x7c00);
    if (!__hisnan(x)) {
      EXPECT_EQ(bits(__half2float(x)), i);
    }
  }
}

TEST(Language, Bfloat16IsTheUpperHalfOfAFloatRoundedToNearestEven) {
  const auto bits = [](float x) { return __bfloat16_as_ushort(__float2bfloat16(x)); };
  EXPECT_EQ(bits(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(bits(1.0f + 0x3p-8f), 0x3f82);
  EXPECT_EQ(bits(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bits(-0x1p-134f), 0x8000);
  for (unsigned i = 0; i < 65536; ++i) {
    const float x = __bfloat162float(__ushort_as_bfloat16(static_cast<unsigned short>(i)));
    if (std::isnan(x)) continue;
    EXPECT_EQ(__float_as_uint(x), i << 16);
    EXPECT_EQ(bits(x), i);
  }
}

template <class T>
__global__ void calculate(T* out, T a, T b, T c) {
  out[0] = a + b;
  out[1] = a - b;
  out[2] = a * b;
  out[3] = c / T{3.0f};
  out[4] = __hfma(a, b, c);
  out[5] = a * b + c;
  out[6] = __hmax(-a, T{NAN});
  out[7] = __hmin(__habs(-a), b);
  out[8] = T{__hlt(-a, b) + 2.0f * __hlt(a, b) + 4.0f * __hge(a, T{NAN})};
}

// Where the product lies between two numbers that there are, only one rounding keeps what is added.
TEST(Language, HalvesRoundEachOperationOnce) {
  EXPECT_THAT(
      run(1, 1, calculate<__half>, std::vector<__half>(9), 65.0f, 65.0f, 2.0f),
      ElementsAre(130.0f, 0.0f, 4224.0f, 0x1.554p-1f, 4228.0f, 4224.0f, -65.0f, 65.0f, 1.0f));
  EXPECT_THAT(
      run(1, 1, calculate<__nv_bfloat16>, std::vector<__nv_bfloat16>(9), 17.0f, 17.0f, 1.0f),
      ElementsAre(34.0f, 0.0f, 288.0f, 0x1.56p-2f, 290.0f, 288.0f, -17.0f, 17.0f, 1.0f));
}

}  // namespace
