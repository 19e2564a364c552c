// Each kind of bug, seeded, and found; and kernels without one, which give what a GPU gives.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "simt/simt.h"

#if defined(__SANITIZE_THREAD__)
// A race ends the process, whatever the environment says.
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }
#endif

namespace {

using testing::AllOf;
using testing::HasSubstr;

#if defined(__SANITIZE_THREAD__)
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif
constexpr int kSchedules = 20;

enum class Bug {
  kNone,
  kMissingBarrier,
  kSharedOutOfBounds,
  kForeignMask,
  kExitedLane,
  kDivergentBarrier,
  kLaneSkipsBarrier,
  kBlocksRace,
};

// out[0] += sum of x; blocks of 64.
template <Bug kBug>
__global__ void block_sum(const float* x, float* out, int n) {
  SIMT_STATIC_SHARED(float, partial, 2);
  float sum = 0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < static_cast<unsigned>(n);
       i += gridDim.x * blockDim.x) {
    sum += x[i];
  }
  if (kBug == Bug::kExitedLane && threadIdx.x == 3) return;
  for (unsigned o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  const unsigned at = threadIdx.x / 32 + (kBug == Bug::kSharedOutOfBounds ? 1 : 0);
  if (threadIdx.x % 32 == 0) partial[at] = sum;
  if (kBug == Bug::kLaneSkipsBarrier && threadIdx.x >= 32) {
    __syncwarp(0xfu);
  } else if (kBug == Bug::kDivergentBarrier && threadIdx.x >= 32) {
    __syncthreads();
  } else if (kBug != Bug::kMissingBarrier) {
    __syncthreads();
  }
  if (threadIdx.x < 32) {
    sum = threadIdx.x < 2 ? partial[threadIdx.x] : 0.0f;
    sum += __shfl_xor_sync(kBug == Bug::kForeignMask && threadIdx.x >= 16 ? 0xffffu : 0xffffffffu,
                           sum, 1u);
    if (threadIdx.x == 0) {
      if (kBug == Bug::kBlocksRace) {
        *out += sum;
      } else {
        atomicAdd(out, sum);
      }
    }
  }
}

__global__ void scale(float* x, int n, float by) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < static_cast<unsigned>(n)) x[i] *= by;
}

template <class... P, class... A>
cudaError_t start(cudaStream_t stream, dim3 grid, dim3 block, size_t dynamic, void (*kernel)(P...),
                  A... arguments) {
  const cudaLaunchConfig_t config = {grid, block, dynamic, stream, nullptr, 0};
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

class Emulator : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "fast");
    ASSERT_EQ(cudaStreamCreateWithFlags(&a_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&b_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&x_), kCount * sizeof(float)), cudaSuccess);
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&out_), 256), cudaSuccess);
    ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned_), 256), cudaSuccess);
  }
  void TearDown() override {
    simt::take_report();
    EXPECT_EQ(cudaStreamDestroy(a_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(b_), cudaSuccess);
    cudaFree(x_);
    cudaFree(out_);
    cudaFreeHost(pinned_);
    simt::take_report();
  }

  // The sum of 0 .. kCount - 1 by a kernel, or what went wrong in *error.
  template <Bug kBug>
  float sum(cudaError_t* error = nullptr) {
    std::vector<float> x(kCount);
    std::iota(x.begin(), x.end(), 0.0f);
    cudaMemcpyAsync(x_, x.data(), sizeof(float) * kCount, cudaMemcpyHostToDevice, a_);
    cudaMemsetAsync(out_, 0, 256, a_);
    start(a_, dim3(4), dim3(64), 0, block_sum<kBug>, static_cast<const float*>(x_), out_,
          int{kCount});
    float out = -1;
    const cudaError_t result = cudaMemcpyAsync(&out, out_, sizeof out, cudaMemcpyDeviceToHost, a_);
    if (error != nullptr) *error = result;
    return out;
  }
  // Whether some schedule shows a wrong value.
  template <class F>
  static bool some_schedule(const F& is_wrong) {
    for (int seed = 1; seed <= kSchedules; ++seed) {
      simt::seed(static_cast<uint64_t>(seed));
      if (is_wrong()) return true;
    }
    return false;
  }

  static constexpr int kCount = 1001;
  static constexpr float kSum = 1000.0f * 1001 / 2;
  cudaStream_t a_ = nullptr, b_ = nullptr;
  float* x_ = nullptr;
  float* out_ = nullptr;
  float* pinned_ = nullptr;
};
using EmulatorDeathTest = Emulator;

TEST_F(Emulator, ARightKernelIsRightInEverySchedule) {
  EXPECT_FALSE(some_schedule([&] { return sum<Bug::kNone>() != kSum; }));
  EXPECT_EQ(simt::take_report(), "");
}

TEST_F(Emulator, AScheduleIsReplayedByItsSeed) {
  const auto clocks = [&] {
    simt::seed(77);
    sum<Bug::kNone>();
    return simt::clock();
  };
  const long long before = simt::clock();
  const long long first = clocks() - before;
  EXPECT_GT(first, 0);
  EXPECT_EQ(clocks() - before - first, first);
}

TEST_F(EmulatorDeathTest, AMissingBarrierIsFound) {
  if (kTsan) {
    EXPECT_EXIT(sum<Bug::kMissingBarrier>(), testing::ExitedWithCode(66), "data race");
  } else {
    EXPECT_TRUE(some_schedule([&] { return sum<Bug::kMissingBarrier>() != kSum; }));
  }
}

TEST_F(EmulatorDeathTest, BlocksThatRaceAreFound) {
  // Without ThreadSanitizer: blocks that do not sleep run one after another.
  if (!kTsan) return;
  EXPECT_EXIT(sum<Bug::kBlocksRace>(), testing::ExitedWithCode(66), "data race");
}

TEST_F(EmulatorDeathTest, AStepBeyondSharedMemoryIsFound) {
  if (kAsan) {
    EXPECT_DEATH(sum<Bug::kSharedOutOfBounds>(), "heap-buffer-overflow|out of bounds");
  } else if (!kTsan) {
    cudaError_t error;
    sum<Bug::kSharedOutOfBounds>(&error);
    EXPECT_EQ(error, cudaErrorIllegalAddress);
    EXPECT_THAT(simt::take_report(), AllOf(HasSubstr("shared array"), HasSubstr("emulator_test")));
  }
}

TEST_F(Emulator, MasksThatDoNotMeetAreFound) {
  cudaError_t error;
  sum<Bug::kForeignMask>(&error);
  EXPECT_EQ(error, cudaErrorLaunchFailure);
  EXPECT_THAT(simt::take_report(), HasSubstr("emulator_test.cpp"));
  sum<Bug::kExitedLane>(&error);
  EXPECT_EQ(error, cudaErrorLaunchFailure);
  EXPECT_THAT(simt::take_report(), HasSubstr("lane 3, which has exited"));
}

TEST_F(Emulator, BarriersThatDoNotMeetAreFound) {
  cudaError_t error;
  sum<Bug::kDivergentBarrier>(&error);
  EXPECT_EQ(error, cudaErrorLaunchFailure);
  EXPECT_THAT(simt::take_report(), HasSubstr("while others wait at"));
  sum<Bug::kLaneSkipsBarrier>(&error);
  EXPECT_EQ(error, cudaErrorLaunchFailure);
  EXPECT_THAT(simt::take_report(), HasSubstr("not in its own mask"));
}

TEST_F(Emulator, AnErrorSticksToItsDevice) {
  cudaError_t error;
  sum<Bug::kExitedLane>(&error);
  EXPECT_EQ(cudaStreamSynchronize(b_), cudaErrorLaunchFailure);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 8), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&more, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(more), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST_F(Emulator, AWrongLaunchIsRefusedAndDoesNotStick) {
  EXPECT_EQ(start(a_, 1, 1025, 0, scale, x_, 1, 1.0f), cudaErrorInvalidConfiguration);
  EXPECT_EQ(start(a_, 0, 32, 0, scale, x_, 1, 1.0f), cudaErrorInvalidConfiguration);
  EXPECT_EQ(start(a_, dim3(1, 65536), 32, 0, scale, x_, 1, 1.0f), cudaErrorInvalidConfiguration);
  EXPECT_EQ(start(a_, 1, dim3(1, 1, 65), 0, scale, x_, 1, 1.0f), cudaErrorInvalidConfiguration);
  EXPECT_EQ(start(a_, 1, 32, 49153, scale, x_, 1, 1.0f), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(scale, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000),
            cudaSuccess);
  EXPECT_EQ(start(a_, 1, 32, 49153, scale, x_, 0, 1.0f), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
}

TEST_F(Emulator, AHostPointerIsNoArgument) {
  std::vector<float> host(16);
  EXPECT_EQ(start(a_, 1, 32, 0, scale, host.data(), 16, 1.0f), cudaErrorIllegalAddress);
  EXPECT_THAT(simt::take_report(), HasSubstr(kTsan ? "kernel" : "scale"));
  float* gone = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&gone), 64), cudaSuccess);
  ASSERT_EQ(cudaFree(gone), cudaSuccess);
  EXPECT_EQ(start(a_, 1, 32, 0, scale, gone, 16, 1.0f), cudaErrorIllegalAddress);
}

// 1024 bytes end at a page; 1001 floats do not.
TEST_F(EmulatorDeathTest, AStepBeyondAnAllocationIsFound) {
  float* exact = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&exact), 1024), cudaSuccess);
  const char* how = kAsan ? "use-after-poison|SEGV" : kTsan ? "SEGV" : "illegal address .* kernel";
  EXPECT_DEATH(
      {
        start(a_, 1, 288, 0, scale, exact, 257, 2.0f);
        cudaStreamSynchronize(a_);
      },
      how);
  EXPECT_EQ(cudaFree(exact), cudaSuccess);
  if (kAsan) return;
  ASSERT_EQ(start(a_, 1, 1024, 0, scale, x_, kCount + 1, 2.0f), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorIllegalAddress);
  EXPECT_THAT(simt::take_report(), HasSubstr("4004 bytes on cuda:0"));
}

TEST_F(EmulatorDeathTest, TheHostMayNotTouchDeviceMemory) {
  const char* how = kAsan || kTsan ? "SEGV" : "the host touched memory of cuda:0: byte 8 of 256";
  EXPECT_DEATH(out_[2] = 1, how);
  ASSERT_EQ(cudaMemset(out_, 0, 256), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_DEATH(out_[2] = 1, how);
}

TEST_F(EmulatorDeathTest, APeersMemoryNeedsAccess) {
  float* theirs = nullptr;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&theirs), 256), cudaSuccess);
  ASSERT_EQ(cudaMemset(theirs, 0, 256), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const auto run = [&] {
    start(a_, 1, 64, 0, scale, theirs, 64, 2.0f);
    return cudaStreamSynchronize(a_);
  };
  EXPECT_DEATH(run(), kAsan || kTsan ? "SEGV" : "not a peer");
  ASSERT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  EXPECT_EQ(run(), cudaSuccess);
  EXPECT_EQ(cudaFree(theirs), cudaSuccess);
}

TEST_F(Emulator, FreshMemoryIsNotANumber) {
  ASSERT_EQ(cudaMemcpy(pinned_, out_, 64, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_TRUE(std::isnan(pinned_[0]) && std::isnan(pinned_[15]));
}

TEST_F(Emulator, MemoryEnds) {
  simt::set_device_bytes(1 << 20);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 1 << 20), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  simt::set_device_bytes(1 << 30);
}

// Stream b reads what stream a writes; with an event between them it is right in every schedule.
TEST_F(EmulatorDeathTest, AMissingEventWaitIsFound) {
  cudaEvent_t event;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  const auto wrong = [&](bool waits) {
    cudaMemset(out_, 0, 256);
    cudaDeviceSynchronize();
    const float two = 2;
    cudaMemcpyAsync(out_, &two, sizeof two, cudaMemcpyHostToDevice, a_);
    start(a_, 1, 32, 0, scale, out_, 1, 3.0f);
    cudaEventRecord(event, a_);
    if (waits) cudaStreamWaitEvent(b_, event);
    start(b_, 1, 32, 0, scale, out_, 1, 5.0f);
    cudaMemcpyAsync(pinned_, out_, sizeof two, cudaMemcpyDeviceToHost, b_);
    cudaStreamSynchronize(b_);
    const bool result = pinned_[0] != 30.0f;
    cudaDeviceSynchronize();
    return result;
  };
  EXPECT_FALSE(some_schedule([&] { return wrong(true); }));
  if (kTsan) {
    EXPECT_EXIT(wrong(false), testing::ExitedWithCode(66), "data race");
  } else {
    EXPECT_TRUE(some_schedule([&] { return wrong(false); }));
  }
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(EmulatorDeathTest, AReadBeforeAWaitIsFound) {
  const auto wrong = [&](bool waits) {
    pinned_[0] = 0;
    const float two = 2;
    cudaMemcpyAsync(out_, &two, sizeof two, cudaMemcpyHostToDevice, a_);
    cudaMemcpyAsync(pinned_, out_, sizeof two, cudaMemcpyDeviceToHost, a_);
    if (waits) cudaStreamSynchronize(a_);
    const bool result = pinned_[0] != 2.0f;
    cudaStreamSynchronize(a_);
    return result;
  };
  EXPECT_FALSE(some_schedule([&] { return wrong(true); }));
  if (kTsan) {
    EXPECT_EXIT(some_schedule([&] { return wrong(false), false; }), testing::ExitedWithCode(66),
                "data race");
  } else {
    EXPECT_TRUE(some_schedule([&] { return wrong(false); }));
  }
}

TEST_F(Emulator, PageableMemoryIsStagedAndPinnedMemoryIsNot) {
  float value = 2;
  bool changed = false;
  if (kTsan) return;  // a race, by design
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    value = 2;
    cudaMemcpyAsync(out_, &value, sizeof value, cudaMemcpyHostToDevice, a_);
    value = 3;
    float back = 0;
    cudaMemcpyAsync(&back, out_, sizeof back, cudaMemcpyDeviceToHost, a_);
    EXPECT_EQ(back, 2.0f);
    pinned_[0] = 2;
    cudaMemcpyAsync(out_, pinned_, sizeof value, cudaMemcpyHostToDevice, a_);
    pinned_[0] = 3;
    cudaMemcpyAsync(&back, out_, sizeof back, cudaMemcpyDeviceToHost, a_);
    changed = changed || back == 3.0f;
  }
  EXPECT_TRUE(changed);
}

TEST_F(Emulator, CopiesKnowDirectionAndSize) {
  float host[4] = {};
  EXPECT_EQ(cudaMemcpy(x_, out_, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, host + 1, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(out_, x_, 257, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(out_, x_, 256, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(cudaFree(host), cudaErrorInvalidValue);
}

TEST_F(Emulator, EventsHaveTimes) {
  cudaEvent_t begin, end;
  ASSERT_EQ(cudaEventCreateWithFlags(&begin, cudaEventDefault), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&end, cudaEventDefault), cudaSuccess);
  float ms = -1;
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaEventRecord(begin, a_), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(out_, 0, 256, a_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(end, a_), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaSuccess);
  EXPECT_GT(ms, 0);
  EXPECT_EQ(cudaEventDestroy(begin), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
}

TEST_F(Emulator, CallbacksRunInOrderAndMayNotCallCuda) {
  std::vector<int> seen;
  const auto callback = [](void* data) {
    auto* list = static_cast<std::vector<int>*>(data);
    list->push_back(cudaDeviceSynchronize());
  };
  ASSERT_EQ(cudaLaunchHostFunc(a_, callback, &seen), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_THAT(seen, testing::ElementsAre(cudaErrorNotPermitted));
}

// ---- The language ----

__global__ void warp_ops(unsigned* out) {
  const unsigned t = threadIdx.x;
  out[t] = __ballot_sync(0xffffffffu, t % 3 == 0);
  out[32 + t] = static_cast<unsigned>(__any_sync(0xffffffffu, t == 31)) +
                2u * static_cast<unsigned>(__all_sync(0xffffffffu, t < 31));
  out[64 + t] = __match_any_sync(0xffffffffu, t / 8);
  out[96 + t] = static_cast<unsigned>(__reduce_min_sync(0xffffffffu, static_cast<int>(t) - 5));
  out[128 + t] = __shfl_up_sync(0xffffffffu, t, 1u, 8);
  out[160 + t] = __shfl_down_sync(0xffffffffu, t, 2u, 8);
  out[192 + t] = __shfl_sync(0xffffffffu, t, 5u, 16);
  if (t % 2 == 0) out[224 + t] = __reduce_add_sync(0x55555555u, t);
  if (t % 2 == 1) out[224 + t] = __popc(__activemask());
}

TEST_F(Emulator, WarpsVoteMatchAndShuffle) {
  ASSERT_EQ(start(a_, 1, 32, 0, warp_ops, reinterpret_cast<unsigned*>(x_)), cudaSuccess);
  std::vector<unsigned> out(256);
  ASSERT_EQ(cudaMemcpyAsync(out.data(), x_, 1024, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  for (unsigned t = 0; t < 32; ++t) {
    EXPECT_EQ(out[t], 0x49249249u);
    EXPECT_EQ(out[32 + t], 1u);
    EXPECT_EQ(out[64 + t], 0xffu << (t / 8 * 8));
    EXPECT_EQ(static_cast<int>(out[96 + t]), -5);
    EXPECT_EQ(out[128 + t], t % 8 == 0 ? t : t - 1);
    EXPECT_EQ(out[160 + t], t % 8 < 6 ? t + 2 : t);
    EXPECT_EQ(out[192 + t], t / 16 * 16 + 5);
    if (t % 2 == 0) {
      EXPECT_EQ(out[224 + t], 240u);
    }
  }
}

__global__ void block_ops(int* out) {
  SIMT_DYNAMIC_SHARED(int, dynamic);
  dynamic[threadIdx.x] = static_cast<int>(threadIdx.x);
  const int count = __syncthreads_count(threadIdx.x % 3 == 0);
  const int all = __syncthreads_and(threadIdx.x < 70);
  const int any = __syncthreads_or(threadIdx.x == 69);
  const int neighbour = dynamic[(threadIdx.x + 1) % blockDim.x];
  atomicMax(&out[0], count);
  atomicAdd(&out[1], all);
  atomicAdd(&out[2], any);
  atomicAdd(&out[3], neighbour);
  atomicInc(reinterpret_cast<unsigned*>(&out[4]), 99u);
}

TEST_F(Emulator, BlocksCountAndShareMemory) {
  ASSERT_EQ(cudaMemsetAsync(x_, 0, 64, a_), cudaSuccess);
  ASSERT_EQ(start(a_, 3, 70, 70 * sizeof(int), block_ops, reinterpret_cast<int*>(x_)), cudaSuccess);
  int out[5];
  ASSERT_EQ(cudaMemcpyAsync(out, x_, sizeof out, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  EXPECT_THAT(out, testing::ElementsAre(24, 210, 210, 3 * 69 * 70 / 2, 210 % 100));
}

// The blocks of a grid meet by a counter: each waits until all have come.
__global__ void grid_barrier(unsigned* counter, unsigned* out) {
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

TEST_F(Emulator, BlocksThatSleepWaitForEachOther) {
  for (int seed = 1; seed <= 5; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    ASSERT_EQ(cudaMemsetAsync(x_, 0, 256, a_), cudaSuccess);
    auto* words = reinterpret_cast<unsigned*>(x_);
    ASSERT_EQ(start(a_, 7, 33, 0, grid_barrier, words, words + 8), cudaSuccess);
    unsigned out = 0;
    ASSERT_EQ(cudaMemcpyAsync(&out, words + 8, 4, cudaMemcpyDeviceToHost, a_), cudaSuccess);
    EXPECT_EQ(out, 21u);
  }
}

// A process doubles another one's device memory.
TEST_F(Emulator, ProcessesShareMemory) {
  int to_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  const pid_t child = fork();
  if (child == 0) {
    cudaIpcMemHandle_t memory;
    void* mapped = nullptr;
    const bool ok =
        read(to_child[0], &memory, sizeof memory) == sizeof memory &&
        cudaIpcOpenMemHandle(&mapped, memory, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess &&
        start(b_, 1, 64, 0, scale, static_cast<float*>(mapped), 64, 2.0f) == cudaSuccess &&
        cudaStreamSynchronize(b_) == cudaSuccess;
    _exit(ok ? 0 : 1);
  }
  std::vector<float> values(64, 1.5f);
  ASSERT_EQ(cudaMemcpy(out_, values.data(), 256, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaIpcMemHandle_t memory;
  ASSERT_EQ(cudaIpcGetMemHandle(&memory, out_), cudaSuccess);
  ASSERT_EQ(write(to_child[1], &memory, sizeof memory), static_cast<ssize_t>(sizeof memory));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(cudaMemcpy(values.data(), out_, 256, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(values[63], 3.0f);
  close(to_child[0]);
  close(to_child[1]);
}

TEST_F(Emulator, FindsMemoryThatIsFreedWhileAProcessHasItMapped) {
  for (const bool closes : {false, true}) {
    int to_child[2], to_parent[2];
    ASSERT_EQ(pipe(to_child) + pipe(to_parent), 0);
    const pid_t child = fork();
    if (child == 0) {
      cudaIpcMemHandle_t handle;
      void* mapped = nullptr;
      char done = 0;
      const bool ok = read(to_child[0], &handle, sizeof handle) == sizeof handle &&
                      cudaIpcOpenMemHandle(&mapped, handle, 0) == cudaSuccess &&
                      (!closes || cudaIpcCloseMemHandle(mapped) == cudaSuccess) &&
                      write(to_parent[1], &done, 1) == 1 && read(to_child[0], &done, 1) == 1;
      _exit(ok ? 0 : 1);
    }
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, 1000), cudaSuccess);
    cudaIpcMemHandle_t handle;
    ASSERT_EQ(cudaIpcGetMemHandle(&handle, memory), cudaSuccess);
    ASSERT_EQ(write(to_child[1], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
    char done = 0;
    ASSERT_EQ(read(to_parent[0], &done, 1), 1);
    EXPECT_EQ(cudaFree(memory), closes ? cudaSuccess : cudaErrorIllegalAddress);
    EXPECT_EQ(simt::take_report().find("has it mapped") == std::string::npos, closes);
    ASSERT_EQ(write(to_child[1], &done, 1), 1);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(fd);
  }
}

}  // namespace
