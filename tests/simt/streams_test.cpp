// Streams, events, and the memory that belongs to them, on emulated CUDA devices: right in every
// schedule, and where a wait is missing wrong in some. Run with the cache of blocks (SIMT_CACHE=1)
// and without, where blocks go back to the emulator, which finds late uses.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "../errors.h"
#include "children.h"
#include "devices.h"
#include "gate.h"
#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/stream.h"
#include "lockstep/kernels/transfer.h"
#include "schedules.h"
#include "simt/simt.h"

#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }
#endif

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

#if defined(__SANITIZE_THREAD__)
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif
constexpr int64_t kCount = 1037;
constexpr Device kDevice = {DeviceType::kCuda, 0};

using Memory = std::shared_ptr<void>;

Memory floats(Device device = kDevice) { return allocate(kCount * sizeof(float), device); }

View view(const Memory& memory, Device device = kDevice) {
  return {memory.get(), DType::kF32, device, {kCount}, {1}};
}

void fill(const Memory& memory, double value) {
  launch<kernels::Fill>(kDevice, view(memory), value);
}
void copy(const Memory& from, const Memory& to) {
  launch<kernels::Copy>(kDevice, view(from), view(to));
}
std::vector<float> values(const Memory& memory, Device device = kDevice) {
  std::vector<float> out(kCount);
  cuda::copy(out.data(), kCpu, memory.get(), device, kCount * sizeof(float));
  return out;
}

template <class F>
void in_every_schedule(const F& body) {
  for (int seed = 1; seed <= kSchedules; ++seed) {
    SCOPED_TRACE(seed);
    simt::seed(static_cast<uint64_t>(seed));
    body();
    ASSERT_EQ(simt::take_report(), "");
  }
}

// Whether wrong() holds in a schedule; ThreadSanitizer ends the process at the race itself.
template <class F>
void expect_found(const F& wrong) {
  const auto search = [&] {
    bool found = false;
    for (int seed = 1; seed <= kSchedules && !found; ++seed) {
      simt::seed(static_cast<uint64_t>(seed));
      found = wrong();
    }
    return found;
  };
  if (kTsan) {
    EXPECT_EXIT(search(), ::testing::ExitedWithCode(66), "data race");
  } else {
    EXPECT_TRUE(search());
  }
}

class StreamsDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void TearDown() override {
    Stream(kDevice).synchronize();
    empty_cache(kDevice);
  }
};
using Streams = StreamsDeathTest;
using DeviceMemory = StreamsDeathTest;
// Of blocks that are kept: the emulator keeps them where SIMT_CACHE=1 is set, as in the test
// simt_streams_test.cached, which runs these.
class CachedMemoryDeathTest : public StreamsDeathTest {
 protected:
  void SetUp() override {
    StreamsDeathTest::SetUp();
    ASSERT_TRUE(cuda::caches_memory()) << "want SIMT_CACHE=1";
  }
};

// x becomes 2 on the current stream, y its copy on another.
float copied_on_a_side_stream(bool waits_for_x, bool waits_for_y) {
  const Stream side = Stream::create(kDevice, StreamPriority::kHigh);
  const Memory x = floats();
  const Memory y = floats();
  fill(x, 1);
  fill(y, 0);
  current_stream(kDevice).synchronize();
  fill(x, 2);
  if (waits_for_x) side.wait(current_stream(kDevice).record());
  {
    const StreamGuard guard(side);
    copy(x, y);
  }
  if (waits_for_y) current_stream(kDevice).wait(side.record());
  const std::vector<float> out = values(y);
  side.synchronize();
  current_stream(kDevice).synchronize();
  return std::accumulate(out.begin(), out.end(), 0.0f) / static_cast<float>(kCount);
}

TEST_F(Streams, AreOrderedByEvents) {
  in_every_schedule([] { EXPECT_EQ(copied_on_a_side_stream(true, true), 2); });
}

TEST_F(StreamsDeathTest, AWaitThatIsMissingIsFound) {
  expect_found([] { return copied_on_a_side_stream(false, true) != 2; });
  expect_found([] { return copied_on_a_side_stream(true, false) != 2; });
}

TEST_F(Streams, OfTwoDevicesAreOrderedByEvents) {
  LOCKSTEP_WANT_DEVICES(2);
  in_every_schedule([] {
    const Memory x = floats();
    const Memory y = floats(kSecond);
    fill(x, 3);
    const Stream theirs = Stream::create(kSecond);
    {
      const StreamGuard guard(theirs);
      cuda::copy(y.get(), kSecond, x.get(), kDevice, kCount * sizeof(float));
      EXPECT_EQ(current_stream(kSecond), theirs);
      EXPECT_EQ(current_stream(kDevice), Stream(kDevice));
    }
    current_stream(kSecond).wait(theirs.record());
    EXPECT_THAT(values(y, kSecond), Each(3.0f));
    used_on(y.get(), theirs);
  });
}

TEST_F(Streams, CurrentOnesAreOfAThreadAndNest) {
  LOCKSTEP_WANT_DEVICES(2);
  const Stream a = Stream::create(kDevice);
  const Stream b = Stream::create(kDevice);
  EXPECT_FALSE(a == b);
  EXPECT_EQ(current_stream(kDevice), Stream(kDevice));
  {
    const StreamGuard outer(a);
    EXPECT_EQ(current_stream(kDevice), a);
    {
      const StreamGuard inner(b);
      EXPECT_EQ(current_stream(kDevice), b);
      std::thread([&] { EXPECT_EQ(current_stream(kDevice), Stream(kDevice)); }).join();
    }
    EXPECT_EQ(current_stream(kDevice), a);
    EXPECT_EQ(current_stream(kSecond), Stream(kSecond));
  }
  EXPECT_EQ(current_stream(kDevice), Stream(kDevice));
  EXPECT_THAT(message_of(ErrorCode::kDevice,
                         [] {
                           Stream::create({DeviceType::kCuda, 9});
                         }),
              HasSubstr("cuda:9"));
}

TEST_F(Streams, EventsSayWhenAndHowLong) {
  const Memory x = floats();
  const Event start = current_stream(kDevice).record(true);
  for (int i = 0; i < 5; ++i) fill(x, i);
  const Event end = current_stream(kDevice).record(true);
  end.synchronize();
  EXPECT_TRUE(start.done());
  EXPECT_TRUE(end.done());
  EXPECT_TRUE(current_stream(kDevice).done());
  EXPECT_GT(milliseconds_between(start, end), 0);
  EXPECT_TRUE(Event().done());
  EXPECT_THAT(message_of(ErrorCode::kInvalidArgument,
                         [&] { milliseconds_between(start, Stream().record(true)); }),
              AllOf(HasSubstr("cuda:0"), HasSubstr("cpu")));
  EXPECT_THAT(message_of(ErrorCode::kInvalidArgument,
                         [&] { milliseconds_between(Stream().record(), Stream().record(true)); }),
              HasSubstr("record(true)"));
  const Event before = Stream().record(true);
  EXPECT_GE(milliseconds_between(before, Stream().record(true)), 0);
}

TEST_F(Streams, TellAFaultToWhoeverAsks) {
  const Stream side = Stream::create(kDevice);
  const Memory x = floats();
  {
    const StreamGuard guard(side);
    View beyond = view(x);
    beyond.data = &beyond;  // the host's own memory
    EXPECT_THAT(
        message_of(ErrorCode::kDevice, [&] { launch<kernels::Fill>(kDevice, beyond, 1.0); }),
        AllOf(HasSubstr("cudaErrorIllegalAddress"), HasSubstr("from cudaLaunchKernelEx("),
              HasSubstr(", seen in Fill; work"), HasSubstr("CUDA_LAUNCH_BLOCKING=1")));
  }
  EXPECT_THAT(message_of(ErrorCode::kDevice, [&] { launch<kernels::Fill>(kDevice, view(x), 1.0); }),
              HasSubstr(", seen in Fill; work"));
  EXPECT_THAT(message_of(ErrorCode::kDevice, [&] { side.synchronize(); }),
              AllOf(HasSubstr("cudaStreamSynchronize"), HasSubstr("CUDA_LAUNCH_BLOCKING=1"),
                    Not(HasSubstr("seen in"))));
  EXPECT_THAT(message_of(ErrorCode::kDevice, [&] { side.record(); }), HasSubstr("cuda"));
  EXPECT_THAT(simt::take_report(), HasSubstr("the host's"));
}

void ask_for_no_device() { cuda::reach_peer(kDevice, {DeviceType::kCuda, 99}); }

struct AsksForNoDevice {
  static void cpu() {}
  static void cuda() { ask_for_no_device(); }
};
struct WantsMemory {
  static void cpu() {}
  static void cuda() { allocate(size_t{1} << 46, kDevice); }
};
struct WantsMemoryAndAsks {
  static void cpu() {}
  static void cuda() {
    EXPECT_THAT(message_of(ErrorCode::kOutOfMemory, [] { launch<WantsMemory>(kDevice); }),
                HasSubstr("on cuda:0, in WantsMemory, but"));
    ask_for_no_device();
  }
};

TEST_F(Streams, ErrorsNameTheKernelThatTheyMet) {
  const auto met = [](auto call) { return message_of(ErrorCode::kDevice, call); };
  EXPECT_THAT(met([] { launch<AsksForNoDevice>(kDevice); }),
              AllOf(HasSubstr("cudaErrorInvalidDevice"), HasSubstr(", in AsksForNoDevice"),
                    Not(HasSubstr("earlier"))));
  EXPECT_THAT(met([] { launch<WantsMemoryAndAsks>(kDevice); }),
              HasSubstr(", in WantsMemoryAndAsks"));
  EXPECT_THAT(met(ask_for_no_device), Not(HasSubstr(", in ")));
}

// y is copied from x on a side stream; x is let go at once, and another block of its size filled.
float copied_from_memory_let_go(bool tells) {
  const Stream side = Stream::create(kDevice);
  const Memory y = floats();
  Memory x = floats();
  fill(x, 1);
  side.wait(current_stream(kDevice).record());
  {
    const StreamGuard guard(side);
    copy(x, y);
  }
  if (tells) used_on(static_cast<float*>(x.get()) + 17, side);
  x.reset();
  x = floats();
  fill(x, 2);
  current_stream(kDevice).wait(side.record());
  const std::vector<float> out = values(y);
  current_stream(kDevice).synchronize();
  return std::accumulate(out.begin(), out.end(), 0.0f) / static_cast<float>(kCount);
}

TEST_F(DeviceMemory, IsUsedAgainBehindTheStreamsThatUsedIt) {
  in_every_schedule([] { EXPECT_EQ(copied_from_memory_let_go(true), 1); });
  if (!cuda::caches_memory()) return;
  const int64_t before = memory_stats(kDevice).system_allocations;
  copied_from_memory_let_go(true);
  EXPECT_EQ(memory_stats(kDevice).system_allocations, before);
}

TEST_F(CachedMemoryDeathTest, AUserThatWasNotToldOfIsFound) {
  expect_found([] { return copied_from_memory_let_go(false) != 1; });
}

TEST_F(DeviceMemory, LetGoUnderAnotherStreamIsUsedAgainBehindIt) {
  in_every_schedule([] {
    const Stream side = Stream::create(kDevice);
    const Memory y = floats();
    {
      Memory x = floats();
      fill(x, 1);
      side.wait(current_stream(kDevice).record());
      const StreamGuard guard(side);
      copy(x, y);
      x.reset();
    }
    const Memory x = floats();
    fill(x, 2);
    current_stream(kDevice).wait(side.record());
    EXPECT_THAT(values(y), Each(1.0f));
  });
}

// x, which is read last by its own stream or by `reader`, goes to a third stream where the device
// has no more.
constexpr size_t kBytes = 4096;
void give_to_another_stream(const std::optional<Stream>& reader) {
  constexpr int64_t kFloats = kBytes / sizeof(float);
  const auto all = [](const Memory& memory) {
    return View{memory.get(), DType::kF32, kDevice, {kFloats}, {1}};
  };
  const Memory y = allocate(kBytes, kDevice);
  Memory x = allocate(kBytes, kDevice);
  launch<kernels::Fill>(kDevice, all(x), 1.0);
  if (reader) {
    reader->wait(current_stream(kDevice).record());
    const StreamGuard guard(*reader);
    launch<kernels::Copy>(kDevice, all(x), all(y));
    used_on(x.get(), *reader);
  } else {
    launch<kernels::Copy>(kDevice, all(x), all(y));
  }
  const void* at = x.get();
  x.reset();
  const Stream side = Stream::create(kDevice);
  {
    const StreamGuard guard(side);
    const Memory z = allocate(kBytes, kDevice);  // the last that the device has
    const Memory again = allocate(kBytes, kDevice);
    EXPECT_EQ(again.get(), at);
    launch<kernels::Fill>(kDevice, all(again), 2.0);
  }
  if (reader) reader->synchronize();
  std::vector<float> out(kFloats);
  cuda::copy(out.data(), kCpu, y.get(), kDevice, kBytes);
  EXPECT_THAT(out, Each(1.0f));
  side.synchronize();
  current_stream(kDevice).synchronize();
}

TEST_F(CachedMemoryDeathTest, GoesToAnotherStreamWhereThereIsNoMoreAndBehindAnEvent) {
  Stream(kDevice).synchronize();
  empty_cache(kDevice);
  simt::set_device_bytes(3 * kBytes + static_cast<size_t>(memory_stats(kDevice).in_use));
  const int64_t before = memory_stats(kDevice).across_streams;
  for (const bool read_elsewhere : {false, true}) {
    in_every_schedule([&] {
      give_to_another_stream(read_elsewhere ? std::optional(Stream::create(kDevice))
                                            : std::nullopt);
      empty_cache(kDevice);
    });
  }
  EXPECT_EQ(memory_stats(kDevice).across_streams - before, 2 * kSchedules);
  simt::set_device_bytes(size_t{1} << 30);
}

TEST_F(DeviceMemory, ThatEndsSaysWhatHoldsIt) {
  const Memory a = allocate(3 << 20, kDevice);
  const Memory b = allocate(3 << 20, kDevice);
  const Memory c = allocate(1 << 20, kDevice);
  const std::string total = std::to_string(cuda::memory_info(kDevice).total);
  EXPECT_THAT(message_of(ErrorCode::kOutOfMemory, [] { allocate(size_t{1} << 46, kDevice); }),
              AllOf(HasSubstr("want 70368744177664 bytes on cuda:0"), HasSubstr("free of " + total),
                    HasSubstr("2 of 3145728, 1 of 1048576"), HasSubstr("in use here by 3 blocks")));
}

TEST_F(CachedMemoryDeathTest, IsGivenBackToTheSystemOnceNobodyNeedsIt) {
  Memory x = floats();
  fill(x, 1);
  x.reset();
  EXPECT_GT(memory_stats(kDevice).cached, 0);
  empty_cache(kDevice);
  EXPECT_EQ(memory_stats(kDevice).cached, 0);
  EXPECT_EQ(simt::take_report(), "");
}

// Memory of the first device goes back to CUDA while a stream of the second still reads it, and not
// before; then() is called when it has been let go.
void give_back_what_the_second_reads(const std::function<void()>& then) {
  ASSERT_TRUE(cuda::reach_peer(kSecond, kFirst));
  const Gate gate(kSecond);
  const Stream ours = Stream::create(kFirst);
  const Stream theirs = Stream::create(kSecond);
  const Memory y = floats(kSecond);
  Memory x = floats(kFirst);
  ours.wait(current_stream(kFirst).record());
  cuda::set_zero(x.get(), kCount * sizeof(float), ours);
  used_on(x.get(), ours);
  theirs.wait(ours.record());
  theirs.wait(current_stream(kSecond).record());
  gate.hold(theirs);
  copy_async(y.get(), x.get(), kCount * sizeof(float), theirs);
  x.reset();
  then();
  std::atomic<bool> freed{false};
  std::thread freeing([&] {
    empty_cache(kFirst);
    freed.store(true);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(freed.load());
  gate.open();
  freeing.join();
  theirs.synchronize();
}

// CUDA's own free may wait for the device of the memory alone.
TEST_F(CachedMemoryDeathTest, IsGivenBackBehindTheStreamsOfOtherDevices) {
  LOCKSTEP_WANT_DEVICES(2);
  give_back_what_the_second_reads([] {});
  EXPECT_EQ(simt::take_report(), "");
}

TEST_F(CachedMemoryDeathTest, IsGivenBackBehindThemThoughItsOwnDeviceHasFailed) {
  LOCKSTEP_WANT_DEVICES(2);
  const Memory other = floats(kFirst);
  View beyond = view(other);
  beyond.data = &beyond;  // the host's own memory
  give_back_what_the_second_reads([&] {
    message_of(ErrorCode::kDevice, [&] {
      launch<kernels::Fill>(kFirst, beyond, 1.0);
      Stream(kFirst).synchronize();
    });
  });
  EXPECT_THAT(simt::take_report(), HasSubstr("the host's"));
}

TEST_F(Streams, CopyToPinnedMemoryWhileTheHostGoesOn) {
  in_every_schedule([] {
    const Stream side = Stream::create(kDevice);
    const Memory host = allocate_pinned(kCount * sizeof(float));
    auto* numbers = static_cast<float*>(host.get());
    std::iota(numbers, numbers + kCount, 0.0f);
    const Memory x = floats();
    side.wait(current_stream(kDevice).record());
    transfer_async(view(host, kCpu), view(x), side);
    Memory back = allocate_pinned(kCount * sizeof(float));
    transfer_async(view(x), view(back, kCpu), side);
    const auto* out = static_cast<const float*>(back.get());
    side.record().synchronize();
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], static_cast<float>(i));
  });
}

// The CPU has one stream: its thread.
TEST_F(Streams, OfTheCpuWaitForADevicesEventOnTheHost) {
  in_every_schedule([] {
    const Stream side = Stream::create(kDevice);
    const Memory x = floats();
    fill(x, 5);
    side.wait(current_stream(kDevice).record());
    const Memory host = allocate_pinned(kCount * sizeof(float));
    auto* numbers = static_cast<float*>(host.get());
    std::fill(numbers, numbers + kCount, 7.0f);
    copy_async(host.get(), x.get(), kCount * sizeof(float), side);
    current_stream(kCpu).wait(side.record());
    EXPECT_THAT(std::vector<float>(numbers, numbers + kCount), Each(5.0f));
  });
}

// A copy of pinned memory goes on after CUDA's call has returned, but not after transfer() has.
TEST_F(Streams, HaveCopiedPinnedMemoryOnceATransferReturns) {
  in_every_schedule([] {
    const Memory host = allocate_pinned(kCount * sizeof(float));
    auto* numbers = static_cast<float*>(host.get());
    const Memory x = floats();
    fill(x, 5);
    transfer(view(x), view(host, kCpu));
    EXPECT_THAT(std::vector<float>(numbers, numbers + kCount), Each(5.0f));
    std::iota(numbers, numbers + kCount, 0.0f);
    transfer(view(host, kCpu), view(x));
    std::fill(numbers, numbers + kCount, -1.0f);
    transfer(view(x), view(host, kCpu));
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(numbers[i], static_cast<float>(i));
  });
}

TEST_F(Streams, LeavePinnedMemoryAloneOnceItIsGivenOutAgain) {
  in_every_schedule([] {
    const Stream side = Stream::create(kDevice);
    const Memory x = floats();
    fill(x, 5);
    side.wait(current_stream(kDevice).record());
    Memory host = allocate_pinned(kCount * sizeof(float));
    copy_async(host.get(), x.get(), kCount * sizeof(float), side);
    host.reset();
    const Memory again = allocate_pinned(kCount * sizeof(float));
    auto* numbers = static_cast<float*>(again.get());
    std::fill(numbers, numbers + kCount, 7.0f);
    side.synchronize();
    EXPECT_THAT(std::vector<float>(numbers, numbers + kCount), Each(7.0f));
  });
  EXPECT_GT(pinned_memory_stats().allocations, 2 * kSchedules - 1);
}

// A context takes some hundred MiB of its device: a rank on the second has none on the first.
using Contexts = ChildrenTest;
TEST_F(Contexts, AreMadeOnTheDevicesThatAreUsedAlone) {
  LOCKSTEP_WANT_DEVICES(2);
  const auto use_the_second = [](int, const std::string&) {
    EXPECT_FALSE(cuda::is_in_use(kFirst));
    const Stream side = Stream::create(kSecond);
    const Memory x = floats(kSecond);
    const auto use = [&] {
      const Memory pinned = allocate_pinned(64);
      cuda::set_zero(x.get(), 64, side);
      copy_async(pinned.get(), x.get(), 64, side);
      const Event event = side.record(true);
      event.synchronize();
      EXPECT_TRUE(event.done() && side.done());
      const Stream other = Stream::create(kSecond);
      other.wait(event);
      other.synchronize();
    };
    use();
    std::thread(use).join();  // whose current device is the first
    // What lets something go in a thread that has called nothing yet.
    const auto let_go = [](auto&& gone) { std::thread([gone = std::move(gone)] {}).join(); };
    let_go(floats(kSecond));
    let_go(side.record());
    let_go(Stream::create(kSecond));
    let_go(allocate_pinned(64));
    EXPECT_TRUE(cuda::is_in_use(kSecond));
    EXPECT_FALSE(cuda::is_in_use(kFirst));
  };
  EXPECT_EQ(run_children(
                1, [] { return ""; }, use_the_second),
            std::vector<int>{0});
}

// The device waits for this thread, as it does where a rank's collective waits for another rank.
TEST_F(DeviceMemory, GivenBackWhereCudaWaitsForTheDeviceHoldsNobodyUp) {
  const Gate gate(kDevice);
  const Stream side = Stream::create(kDevice);
  const Memory x = floats();
  const Memory y = floats(kSecond);
  const Memory still_used = allocate_pinned(kCount * sizeof(float));
  Memory pinned = allocate_pinned(kCount * sizeof(float));
  Memory gone = floats();
  allocate_pinned(64).reset();  // which leaves a block
  side.wait(current_stream(kDevice).record());
  gate.hold(side);
  copy_async(pinned.get(), x.get(), kCount * sizeof(float), side);
  copy_async(gone.get(), x.get(), kCount * sizeof(float), side);

  std::atomic<bool> freed{false};
  std::thread freeing([&] {
    pinned.reset();
    gone.reset();
    empty_cache(kDevice);
    freed.store(true);
  });
  auto needed = std::async(std::launch::async, [&] {
    // By now the other is likely to wait.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (const Memory& memory : {still_used, x, y}) used_on(memory.get(), side);
    // Of a block that is there: whether CUDA itself goes on meanwhile is its own affair.
    return allocate_pinned(64);
  });
  const bool came = needed.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  EXPECT_TRUE(came) << "the allocator's lock is held while CUDA waits";
  EXPECT_FALSE(freed.load());
  gate.open();
  freeing.join();
  needed.get();
  side.synchronize();
  EXPECT_EQ(simt::take_report(), "");
}

}  // namespace
}  // namespace lockstep
