#include "lockstep/kernels/memory.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "lockstep/kernels/error.h"

namespace lockstep {
namespace {

// AddressSanitizer finds use after free and overruns in blocks that come from the system and go
// back to it, so under it nothing is cached and sizes are not rounded up beyond the alignment.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCaches = false;
#else
constexpr bool kCaches = true;
#endif

// Blocks are cached by their exact size, which is rounded up in coarse steps so that tensors of
// nearly the same size share blocks: at most an eighth of a block is wasted.
size_t block_size(size_t bytes) {
  if (bytes <= 512 || !kCaches) return (bytes + kCpuAlignment - 1) / kCpuAlignment * kCpuAlignment;
  const size_t step = std::max(kCpuAlignment, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

class CachingAllocator {
 public:
  void* take(size_t size) {
    {
      std::lock_guard lock(mutex_);
      ++stats_.allocations;
      auto it = free_.find(size);
      if (it != free_.end() && !it->second.empty()) {
        void* block = it->second.back();
        it->second.pop_back();
        stats_.cached -= static_cast<int64_t>(size);
        count_in_use(size);
        return block;
      }
    }
    void* block = system_allocate(size);
    if (block == nullptr) {
      empty_cache();
      block = system_allocate(size);
    }
    std::lock_guard lock(mutex_);
    if (block == nullptr) {
      throw Error(ErrorCode::kOutOfMemory, "allocate",
                  absl::StrCat("want ", size, " bytes on cpu, but the system has no more; ",
                               stats_.in_use, " bytes are in use"));
    }
    ++stats_.system_allocations;
    count_in_use(size);
    return block;
  }

  void give_back(void* block, size_t size) noexcept {
    std::lock_guard lock(mutex_);
    stats_.in_use -= static_cast<int64_t>(size);
    if (!kCaches) return std::free(block);
    try {
      free_[size].push_back(block);
      stats_.cached += static_cast<int64_t>(size);
    } catch (...) {  // no memory for the list itself
      std::free(block);
    }
  }

  void empty_cache() {
    std::lock_guard lock(mutex_);
    for (auto& [size, blocks] : free_) {
      for (void* block : blocks) std::free(block);
    }
    free_.clear();
    stats_.cached = 0;
  }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  static void* system_allocate(size_t size) { return std::aligned_alloc(kCpuAlignment, size); }

  void count_in_use(size_t size) {
    stats_.in_use += static_cast<int64_t>(size);
    stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  }

  std::mutex mutex_;
  absl::flat_hash_map<size_t, std::vector<void*>> free_;
  MemoryStats stats_;
};

// Never destroyed: tensors of static lifetime may be freed after it would have been.
CachingAllocator& cpu_allocator() {
  static auto* allocator = new CachingAllocator;
  return *allocator;
}

}  // namespace

std::shared_ptr<void> allocate(size_t bytes, Device device) {
  require_device(device, "allocate");
  if (bytes == 0) return nullptr;
  check(bytes <= SIZE_MAX / 2, "allocate",
        [&] { return absl::StrCat("want at most 2^63 bytes, got ", bytes); });
  const size_t size = block_size(bytes);
  void* block = cpu_allocator().take(size);
  return {block, [size](void* p) { cpu_allocator().give_back(p, size); }};
}

MemoryStats memory_stats(Device device) {
  require_device(device, "memory_stats");
  return cpu_allocator().stats();
}

void empty_cache(Device device) {
  require_device(device, "empty_cache");
  cpu_allocator().empty_cache();
}

}  // namespace lockstep
