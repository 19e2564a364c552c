// Device memory of Communicator::allocate(), which other ranks may reach: when it goes back.
#include <gtest/gtest.h>

#include "device_checks.h"
#include "lockstep/comm/communicator.h"
#include "simt/simt.h"

namespace lockstep::comm {
namespace {

constexpr Device kDevice = {DeviceType::kCuda, 0};
constexpr int64_t kCount = 4099;

void fill_often(const std::shared_ptr<void>& x, const Stream& stream) {
  const StreamGuard guard(stream);
  for (int i = 1; i <= 30; ++i) {
    launch<kernels::Fill>(kDevice, floats(x, kCount, kDevice), static_cast<double>(i));
  }
}

// A stream's work is not done when the block is let go, nor when its group has gone: CUDA must not
// have the block before.
TEST(SharedDeviceMemory, GoesBackToTheDeviceBehindAllItsUses) {
  for (int seed = 1; seed <= (kSanitized ? 5 : 20); ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    const std::array<Stream, 2> sides = {Stream::create(kDevice), Stream::create(kDevice)};
    run_ranks({kDevice, kDevice}, [&](Communicator& comm) {
      const auto x = comm.allocate(kCount * sizeof(float), kDevice);
      const Stream& side = sides[static_cast<size_t>(comm.rank())];
      side.wait(Stream(kDevice).record());  // x is zero
      fill_often(x, side);
      used_on(x.get(), side);
    });
    for (const Stream& side : sides) side.synchronize();
    ASSERT_EQ(simt::take_report(), "") << "schedule " << seed;
  }
}

// The next that has a block may use it on another stream.
TEST(SharedDeviceMemory, IsGivenOutAgainBehindAllItsUses) {
  for (int seed = 1; seed <= (kSanitized ? 5 : 20); ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    run_ranks({kDevice}, [&](Communicator& comm) {
      auto x = comm.allocate(kCount * sizeof(float), kDevice);
      const void* block = x.get();
      const Stream side = Stream::create(kDevice);
      side.wait(Stream(kDevice).record());
      fill_often(x, side);
      used_on(x.get(), side);
      x = nullptr;
      const Stream other = Stream::create(kDevice);
      const StreamGuard guard(other);
      const auto y = comm.allocate(kCount * sizeof(float), kDevice);
      ASSERT_EQ(y.get(), block);
      const Bytes zero(kCount * sizeof(float), std::byte{0});
      ASSERT_EQ(from_device(kDevice, y, zero.size()), zero) << "schedule " << seed;
      side.synchronize();
    });
    ASSERT_EQ(simt::take_report(), "") << "schedule " << seed;
  }
}

}  // namespace
}  // namespace lockstep::comm
