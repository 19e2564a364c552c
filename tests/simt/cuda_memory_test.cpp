// Device memory of Communicator::allocate(), which other ranks may reach: when it goes back.
#include "lockstep/comm/cuda_memory.h"

#include <gmock/gmock.h>

#include "../errors.h"
#include "device_checks.h"
#include "devices.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/memory.h"
#include "schedules.h"
#include "simt/simt.h"

namespace lockstep::comm {
namespace {

constexpr int64_t kCount = 4099;

void fill_often(const std::shared_ptr<void>& x, const Stream& stream) {
  const StreamGuard guard(stream);
  for (int i = 1; i <= 30; ++i) {
    launch<kernels::Fill>(kFirst, floats(x, kCount, kFirst), static_cast<double>(i));
  }
}

// A stream's work is not done when the block is let go, nor when its group has gone: CUDA must not
// have the block before.
TEST(SharedDeviceMemory, GoesBackToTheDeviceBehindAllItsUses) {
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    const std::array<Stream, 2> sides = {Stream::create(kFirst), Stream::create(kFirst)};
    run_ranks(
        {kFirst, kFirst},
        [&](Communicator& comm) {
          const auto x = comm.allocate(kCount * sizeof(float), kFirst);
          const Stream& side = sides[static_cast<size_t>(comm.rank())];
          side.wait(Stream(kFirst).record());  // x is zero
          fill_often(x, side);
          used_on(x.get(), side);
        },
        options_of({"cuda", ""}));
    for (const Stream& side : sides) side.synchronize();
    ASSERT_EQ(simt::take_report(), "") << "schedule " << seed;
  }
}

// The next that has a block may use it on another stream.
TEST(SharedDeviceMemory, IsGivenOutAgainBehindAllItsUses) {
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    run_ranks(
        {kFirst},
        [&](Communicator& comm) {
          auto x = comm.allocate(kCount * sizeof(float), kFirst);
          const void* block = x.get();
          const Stream side = Stream::create(kFirst);
          side.wait(Stream(kFirst).record());
          fill_often(x, side);
          used_on(static_cast<std::byte*>(x.get()) + 64, side);  // any place of it
          x = nullptr;
          const Stream other = Stream::create(kFirst);
          const StreamGuard guard(other);
          const auto y = comm.allocate(kCount * sizeof(float), kFirst);
          ASSERT_EQ(y.get(), block);
          const Bytes zero(kCount * sizeof(float), std::byte{0});
          ASSERT_EQ(from_device(kFirst, y, zero.size()), zero) << "schedule " << seed;
          side.synchronize();
        },
        options_of({"cuda", ""}));
    ASSERT_EQ(simt::take_report(), "") << "schedule " << seed;
  }
}

// Replays write to it, so that nobody else may have it before the graph is gone.
TEST(SharedDeviceMemory, ThatIsLetGoInACaptureStaysAsLongAsTheGraph) {
  const auto memory = std::make_shared<SharedDeviceMemory>(kFirst);
  const auto take = [&] { return memory->allocate(kCount * sizeof(float)); };
  auto x = take();
  const void* const block = x.get();
  std::shared_ptr<void> y;
  {
    const Graph graph = Graph::capture(Stream::create(kFirst), [&] {
      fill_often(x, current_stream(kFirst));
      x = nullptr;
      EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, take),
                  ::testing::HasSubstr("[allocate] cannot be captured in a graph"));
    });
    y = take();
    EXPECT_NE(y.get(), block);
    graph.replay();
    const Bytes zero(kCount * sizeof(float), std::byte{0});
    EXPECT_EQ(from_device(kFirst, y, zero.size()), zero);
    graph.replay();  // is still going on when the graph goes
  }
  x = take();
  EXPECT_EQ(x.get(), block);
  Stream(kFirst).synchronize();
  EXPECT_EQ(simt::take_report(), "");
}

// CUDA frees nothing in a capture, which would be invalid from then on.
TEST(SharedDeviceMemory, WhoseLastOwnerGoesInACaptureIsFreedAfterIt) {
  const auto x = allocate(kCount * sizeof(float), kFirst);
  Stream(kFirst).synchronize();
  const auto free = cuda::memory_info(kFirst).free;
  auto memory = std::make_shared<SharedDeviceMemory>(kFirst);
  memory->allocate(kCount * sizeof(float));
  const Graph graph = Graph::capture(Stream::create(kFirst), [&] {
    memory = nullptr;
    fill_often(x, current_stream(kFirst));
  });
  graph.replay();
  EXPECT_LT(cuda::memory_info(kFirst).free, free);
  std::make_shared<SharedDeviceMemory>(kFirst);  // which looks for such memory
  Stream(kFirst).synchronize();
  EXPECT_EQ(cuda::memory_info(kFirst).free, free);
  EXPECT_EQ(simt::take_report(), "");
}

TEST(SharedDeviceMemory, IsToldFromTheHostsWithoutAskingCuda) {
  run_ranks(
      {kFirst},
      [&](Communicator& comm) {
        const auto x = comm.allocate(kCount * sizeof(float), kFirst);
        EXPECT_EQ(device_of_ours(x.get()), kFirst);
        EXPECT_EQ(device_of_ours(static_cast<std::byte*>(x.get()) + kCount * sizeof(float) - 1),
                  kFirst);
      },
      options_of({"cuda", ""}));
  static int here = 0;  // not on a stack that a sanitizer made beside it
  EXPECT_EQ(device_of_ours(&here), kCpu);
  EXPECT_EQ(device_of_ours(nullptr), kCpu);
  const auto y = allocate(100, kSecond);
  EXPECT_EQ(device_of_ours(y.get()), kSecond);
}

}  // namespace
}  // namespace lockstep::comm
