// Each kind of bug, seeded, and found; and programs without one, in which none is.
#include <cudaTypedefs.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <numeric>
#include <string>
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

__global__ void read_lane(unsigned mask, int source) {
  if ((mask >> threadIdx.x & 1) != 0) (void)__shfl_sync(mask, 1, source);
}

template <int kBytes>
__global__ void use_static_shared() {
  SIMT_STATIC_SHARED(char, shared, kBytes);
  shared[threadIdx.x] = 1;
}

__global__ void write_dynamic_shared(int at) {
  SIMT_DYNAMIC_SHARED(char, shared);
  if (threadIdx.x == 7) shared[at] = 1;
}

// Needs more than the 32 KiB that a lane has.
[[gnu::noinline]] void fill_local_memory() {
  volatile char local[33 << 10];
  for (volatile char& c : local) c = 1;
}
__global__ void overflow_stack() {
  if (threadIdx.x == 1) fill_local_memory();
}

__global__ void wait_for_flag(unsigned* flag) {
  while (atomicAdd(flag, 0u) == 0) __nanosleep(100);
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
  // What a block is found to do wrong, which must give an error.
  template <class... P, class... A>
  std::string report_of(cudaError_t want, unsigned threads, size_t dynamic, void (*kernel)(P...),
                        A... arguments) {
    EXPECT_EQ(start(a_, 1, threads, dynamic, kernel, arguments...), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(a_), want);
    return simt::take_report();
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

TEST_F(Emulator, LanesThatAreNotThereAreFound) {
  EXPECT_THAT(report_of(cudaErrorLaunchFailure, 32, 0, read_lane, 0xffffu, 16),
              HasSubstr("a shuffle reads from lane 16, outside of the mask"));
  EXPECT_THAT(report_of(cudaErrorLaunchFailure, 20, 0, read_lane, 0xffffffffu, 0),
              HasSubstr("the mask names lane 20, which the block lacks"));
}

TEST_F(Emulator, TooMuchSharedMemoryIsFound) {
  const auto large = use_static_shared<49153>;
  const auto both = use_static_shared<40000>;
  EXPECT_EQ(report_of(cudaSuccess, 32, 9152, both), "");
  EXPECT_THAT(report_of(cudaErrorInvalidValue, 32, 9153, both),
              HasSubstr("40000 bytes beside 9153 dynamic ones"));
  for (const auto kernel : {large, both}) {
    ASSERT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10),
              cudaSuccess);
  }
  EXPECT_EQ(report_of(cudaSuccess, 32, (227 << 10) - 40000, both), "");
  EXPECT_THAT(report_of(cudaErrorInvalidValue, 32, (227 << 10) - 39999, both),
              HasSubstr("40000 bytes beside"));
  EXPECT_THAT(report_of(cudaErrorInvalidValue, 32, 0, large), HasSubstr("of 49153 bytes"));
}

TEST_F(EmulatorDeathTest, AStepBeyondDynamicSharedMemoryIsFound) {
  EXPECT_THAT(report_of(cudaErrorIllegalAddress, 32, 0, write_dynamic_shared, 0),
              HasSubstr("uses dynamic shared memory, and was launched with none"));
  EXPECT_EQ(report_of(cudaSuccess, 32, 48, write_dynamic_shared, 47), "");
  for (const int at : {-1, 48}) {
    if (kAsan) {
      EXPECT_DEATH(report_of(cudaSuccess, 32, 48, write_dynamic_shared, at),
                   "heap-buffer-overflow");
    } else {
      EXPECT_THAT(report_of(cudaErrorIllegalAddress, 32, 48, write_dynamic_shared, at),
                  HasSubstr("beyond the shared array of dynamic shared memory"));
    }
  }
}

TEST_F(Emulator, AStackThatOverflowsIsFound) {
  if (kAsan || kTsan) return;  // whose lanes have larger ones, without a mark
  EXPECT_THAT(report_of(cudaErrorLaunchFailure, 2, 0, overflow_stack),
              HasSubstr("thread (1, 0, 0): its local memory overflowed"));
}

TEST_F(Emulator, WhatWaitsForEverIsFound) {
  simt::set_patience(0);
  ASSERT_EQ(cudaMemset(out_, 0, 256), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_THAT(
      report_of(cudaErrorLaunchFailure, 2, 0, wait_for_flag, reinterpret_cast<unsigned*>(out_)),
      AllOf(HasSubstr("wait for ever: kernel"), HasSubstr("sleeps")));
  void* wait = nullptr;
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuStreamWaitValue64", &wait, 11070, 0), cudaSuccess);
  auto* word = reinterpret_cast<uint64_t*>(pinned_);
  *word = 4;
  ASSERT_EQ(reinterpret_cast<PFN_cuStreamWaitValue64_v11070>(wait)(
                a_, reinterpret_cast<CUdeviceptr>(word), 5, CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorLaunchFailure);
  EXPECT_THAT(simt::take_report(), HasSubstr("wait for ever: a word is 4 and not 5"));
  simt::set_patience(300);
}

// Found by the call where the first has run, and else on the stream.
TEST_F(Emulator, MemoryThatIsFreedTwiceIsFound) {
  const auto report = [&] {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 1000), cudaSuccess);
    EXPECT_EQ(cudaFreeAsync(memory, a_), cudaSuccess);
    const cudaError_t second = cudaFreeAsync(memory, a_);
    if (second != cudaSuccess) {
      EXPECT_EQ(second, cudaErrorInvalidValue);
      return std::string();
    }
    EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorIllegalAddress);
    return simt::take_report();
  };
  EXPECT_TRUE(some_schedule([&] { return report().empty(); }));
  EXPECT_TRUE(some_schedule([&] { return report() == "memory was freed twice\n"; }));
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
