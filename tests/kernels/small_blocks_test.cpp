#include "lockstep/kernels/small_blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "lockstep/kernels/memory.h"

namespace lockstep {
namespace {

TEST(SmallBlocks, AreAlignedAndWritableToTheirEnd) {
  for (const size_t bytes : {0u, 1u, 63u, 64u, 65u, 511u, 512u, 513u, 5000u}) {
    void* block = take_small_block(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % kCpuAlignment, 0u) << bytes;
    std::memset(block, 0x5a, bytes);
    give_small_block(block, bytes);
  }
}

TEST(SmallBlocks, ComeBackFromTheThreadsOwnList) {
  void* first = take_small_block(200);
  give_small_block(first, 200);
  bool from_system = false;
  void* again = take_small_block(193, &from_system);  // of the same size in whole cache lines
  EXPECT_EQ(from_system, !kKeepsFreeBlocks);
  if (kKeepsFreeBlocks) {
    EXPECT_EQ(again, first);
  }
  give_small_block(again, 193);
}

// Blocks wander between threads, and a thread's lists end with it; the sanitizers would see a block
// that is lost or freed twice.
TEST(SmallBlocks, MayBeGivenBackByAnotherThread) {
  constexpr size_t kCount = 10000;  // more than a list keeps
  std::vector<void*> blocks(kCount);
  std::thread([&] {
    for (void*& block : blocks) block = take_small_block(100);
  }).join();
  for (size_t i = 0; i < kCount; ++i) std::memset(blocks[i], static_cast<int>(i), 100);
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(static_cast<unsigned char*>(blocks[i])[99], static_cast<unsigned char>(i));
  }
  std::thread([&] {
    for (void* block : blocks) give_small_block(block, 100);
  }).join();
}

// As a tensor in a static variable does.
struct Late {
  ~Late() { give_small_block(block, 64); }
  void* block = nullptr;
};

TEST(SmallBlocks, MayBeGivenBackAfterTheListsAreGone) {
  std::thread([] {
    static thread_local Late late;
    late.block = take_small_block(64);
    give_small_block(take_small_block(64), 64);  // makes the lists, which die before `late`
  }).join();
}

TEST(SmallBlocks, AreCountedAsMemoryInUse) {
  const MemoryStats before = memory_stats();
  const auto block = allocate(100);
  EXPECT_EQ(memory_stats().in_use, before.in_use + 128);
  EXPECT_EQ(memory_stats().allocations, before.allocations + 1);
}

}  // namespace
}  // namespace lockstep
