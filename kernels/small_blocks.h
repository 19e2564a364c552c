#pragma once

#include <cstddef>
#include <memory>
#include <utility>

// Small blocks of host memory from lists that each thread keeps: without a lock, and in a few
// nanoseconds. What an op on a few numbers makes (its result, the bookkeeping of that, a node of
// the graph) comes from here. Library-internal.
namespace lockstep {

// AddressSanitizer finds use after free and overruns in blocks that come from the system and go
// back to it, so under it nothing is kept.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kKeepsFreeBlocks = false;
#else
inline constexpr bool kKeepsFreeBlocks = true;
#endif

// The largest block that comes from a list. A larger one is the system's.
inline constexpr size_t kLargestSmallBlock = 512;

// `bytes` bytes, aligned to kCpuAlignment, not initialised. Throws std::bad_alloc. `from_system` is
// set where the thread's list was empty.
void* take_small_block(size_t bytes, bool* from_system = nullptr);

// Gives back what take_small_block(bytes) gave, in any thread.
void give_small_block(void* block, size_t bytes) noexcept;

// For standard containers and shared pointers.
template <class T>
struct SmallBlockAllocator {
  using value_type = T;

  SmallBlockAllocator() = default;
  template <class U>
  SmallBlockAllocator(const SmallBlockAllocator<U>&) {}  // NOLINT: implicit, as the standard wants

  T* allocate(size_t n) { return static_cast<T*>(take_small_block(n * sizeof(T))); }
  void deallocate(T* block, size_t n) noexcept { give_small_block(block, n * sizeof(T)); }

  friend bool operator==(const SmallBlockAllocator&, const SmallBlockAllocator&) { return true; }
};

// std::make_shared in small blocks.
template <class T, class... Args>
std::shared_ptr<T> make_small_shared(Args&&... args) {
  return std::allocate_shared<T>(SmallBlockAllocator<T>(), std::forward<Args>(args)...);
}

}  // namespace lockstep
