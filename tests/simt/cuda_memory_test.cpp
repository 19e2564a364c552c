// Device memory of Communicator::allocate(), which other ranks may reach: when it goes back.
#include <gtest/gtest.h>

#include "device_checks.h"
#include "devices.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/cuda/runtime.h"
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
  for (int seed = 1; seed <= (kSanitized ? 5 : 20); ++seed) {
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
  for (int seed = 1; seed <= (kSanitized ? 5 : 20); ++seed) {
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
