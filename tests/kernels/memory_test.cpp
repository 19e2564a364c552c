#include "lockstep/kernels/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "lockstep/kernels/error.h"

namespace lockstep {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCaches = false;  // see kernels/memory.cpp
#else
constexpr bool kCaches = true;
#endif

TEST(Memory, IsAlignedAndWritableToItsEnd) {
  for (const size_t bytes : {1u, 63u, 64u, 65u, 511u, 513u, 4097u, 1000003u}) {
    const auto block = allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.get()) % kCpuAlignment, 0u);
    std::memset(block.get(), 0xa5, bytes);
  }
  EXPECT_EQ(allocate(0), nullptr);
}

// For the system's large pages.
TEST(Memory, LargeBlocksAreAlignedToTwoMebibytes) {
  for (const size_t bytes : {size_t{4} << 20, (size_t{9} << 20) + 1}) {
    const auto memory = allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % (2 << 20), 0u) << bytes;
    std::memset(memory.get(), 1, bytes);
  }
}

TEST(Memory, ReusesFreedBlocksOfNearlyTheSameSize) {
  empty_cache();
  void* first = nullptr;
  {
    const auto block = allocate(1'000'000);
    first = block.get();
  }
  const MemoryStats before = memory_stats();
  const auto again = allocate(999'900);
  const MemoryStats after = memory_stats();
  EXPECT_EQ(after.allocations, before.allocations + 1);
  if (kCaches) {
    EXPECT_EQ(again.get(), first);
    EXPECT_EQ(after.system_allocations, before.system_allocations);
    EXPECT_LT(after.cached, before.cached);
  }
}

TEST(Memory, CountsWhatIsInUse) {
  empty_cache();
  const int64_t before = memory_stats().in_use;
  {
    const auto block = allocate(4096);
    EXPECT_EQ(memory_stats().in_use, before + 4096);
    EXPECT_GE(memory_stats().peak_in_use, before + 4096);
  }
  EXPECT_EQ(memory_stats().in_use, before);
  EXPECT_EQ(memory_stats().cached, kCaches ? 4096 : 0);
  empty_cache();
  EXPECT_EQ(memory_stats().cached, 0);
}

TEST(Memory, GivesEveryThreadBlocksOfItsOwn) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const size_t bytes = 64u * static_cast<size_t>(1 + (i * 7 + t) % 13);
        const auto block = allocate(bytes);
        std::memset(block.get(), t, bytes);
        std::this_thread::yield();
        for (size_t k = 0; k < bytes; ++k) {
          ASSERT_EQ(static_cast<const char*>(block.get())[k], static_cast<char>(t));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The sanitizers' allocators end the program on a size like this one.
TEST(Memory, SaysHowMuchWasWantedWhenThereIsNoMore) {
  try {
    allocate(size_t{1} << 60);
    FAIL() << "want an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("1152921504606846976 bytes"), std::string::npos);
  }
}
#endif

}  // namespace
}  // namespace lockstep
