#include "lockstep/kernels/small_blocks.h"

#include <cstdint>
#include <cstdlib>
#include <new>

#include "lockstep/kernels/memory.h"

namespace lockstep {
namespace {

constexpr size_t kLists = kLargestSmallBlock / kCpuAlignment;

// Blocks that a list keeps. A thread that frees what others made would gather memory without end.
constexpr uint32_t kLongest = 4096;

// A free block holds the link to the next one.
struct Free {
  Free* next;
};

// Plain data: it can be used before any constructor ran and after all destructors did, which is
// when the tensors of static variables come and go.
struct Lists {
  Free* first[kLists];
  uint32_t length[kLists];
  enum State : uint8_t {
    kNew,   // nothing was given back yet
    kOpen,  // the thread's end will empty the lists
    kClosed
  } state;
};
constinit thread_local Lists lists = {};

struct AtThreadEnd {
  ~AtThreadEnd() {
    lists.state = Lists::kClosed;
    for (Free*& first : lists.first) {
      while (first != nullptr) std::free(std::exchange(first, first->next));
    }
  }
};

[[gnu::noinline]] void open() noexcept {
  lists.state = Lists::kOpen;
  [[maybe_unused]] static thread_local AtThreadEnd at_end;
}

size_t list_of(size_t bytes) { return bytes == 0 ? 0 : (bytes - 1) / kCpuAlignment; }

}  // namespace

void* take_small_block(size_t bytes, bool* from_system) {
  const size_t list = list_of(bytes);
  if (list < kLists) {
    Lists& here = lists;
    if (Free* block = here.first[list]; block != nullptr) {
      here.first[list] = block->next;
      --here.length[list];
      return block;
    }
  }
  if (from_system != nullptr) *from_system = true;
  void* block = std::aligned_alloc(kCpuAlignment, (list + 1) * kCpuAlignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void give_small_block(void* block, size_t bytes) noexcept {
  const size_t list = list_of(bytes);
  if (kKeepsFreeBlocks && list < kLists) {
    Lists& here = lists;
    if (here.state == Lists::kNew) {
      open();
      return give_small_block(block, bytes);
    }
    if (here.length[list] < kLongest && here.state == Lists::kOpen) {
      here.first[list] = new (block) Free{here.first[list]};
      ++here.length[list];
      return;
    }
  }
  std::free(block);
}

}  // namespace lockstep
