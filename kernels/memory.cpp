#include "lockstep/kernels/memory.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/small_blocks.h"
#ifdef LOCKSTEP_WITH_CUDA
#include "lockstep/kernels/cuda/runtime.h"
#endif

namespace lockstep {
namespace {

// Where blocks come from.
struct Source {
  Device device;
  bool caches;
  void* (*take)(int device, size_t size);  // null where there is no more
  void (*give_back)(int device, void* block) noexcept;
};

// Blocks are cached by their exact size, which is rounded up in coarse steps so that tensors of
// nearly the same size share blocks: at most an eighth of a block is wasted.
size_t block_size(size_t bytes, bool caches) {
  if (bytes <= kLargestSmallBlock || !caches) {
    return (bytes + kCpuAlignment - 1) / kCpuAlignment * kCpuAlignment;
  }
  const size_t step = std::max(kCpuAlignment, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

class CachingAllocator {
 public:
  explicit CachingAllocator(const Source& source) : source_(source) {}

  bool caches() const { return source_.caches; }

  void* take(size_t size) {
    allocations_.fetch_add(1, std::memory_order_relaxed);
    if (is_small(size)) return take_small(size);
    {
      std::lock_guard lock(mutex_);
      auto it = free_.find(size);
      if (it != free_.end() && !it->second.empty()) {
        void* block = it->second.back();
        it->second.pop_back();
        cached_ -= static_cast<int64_t>(size);
        count_in_use(size);
        return block;
      }
    }
    void* block = source_.take(source_.device.index, size);
    if (block == nullptr) {
      empty_cache();
      block = source_.take(source_.device.index, size);
    }
    if (block == nullptr) throw_out_of_memory(size);
    system_allocations_.fetch_add(1, std::memory_order_relaxed);
    count_in_use(size);
    return block;
  }

  void give_back(void* block, size_t size) noexcept {
    in_use_.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
    if (is_small(size)) return give_small_block(block, size);
    if (!source_.caches) return source_.give_back(source_.device.index, block);
    std::lock_guard lock(mutex_);
    try {
      free_[size].push_back(block);
      cached_ += static_cast<int64_t>(size);
    } catch (...) {  // no memory for the list itself
      source_.give_back(source_.device.index, block);
    }
  }

  void empty_cache() {
    std::lock_guard lock(mutex_);
    for (auto& [size, blocks] : free_) {
      for (void* block : blocks) source_.give_back(source_.device.index, block);
    }
    free_.clear();
    cached_ = 0;
  }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return {in_use_, peak_in_use_, cached_, allocations_, system_allocations_};
  }

 private:
  bool is_small(size_t size) const {
    return size <= kLargestSmallBlock && !source_.device.is_cuda();
  }

  void* take_small(size_t size) {
    bool from_system = false;
    void* block = nullptr;
    try {
      block = take_small_block(size, &from_system);
    } catch (const std::bad_alloc&) {
      throw_out_of_memory(size);
    }
    if (from_system) system_allocations_.fetch_add(1, std::memory_order_relaxed);
    count_in_use(size);
    return block;
  }

  [[noreturn]] void throw_out_of_memory(size_t size) {
    throw Error(
        ErrorCode::kOutOfMemory, "allocate",
        absl::StrCat("want ", size, " bytes on ", source_.device.name(),
                     ", but the system has no more; ", in_use_.load(), " bytes are in use"));
  }

  void count_in_use(size_t size) {
    const auto bytes = static_cast<int64_t>(size);
    const int64_t now = in_use_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t peak = peak_in_use_.load(std::memory_order_relaxed);
    while (now > peak &&
           !peak_in_use_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }

  const Source source_;
  std::mutex mutex_;
  absl::flat_hash_map<size_t, std::vector<void*>> free_;
  int64_t cached_ = 0;

  // See MemoryStats. Counted without the lock, which small blocks do not take.
  std::atomic<int64_t> in_use_{0};
  std::atomic<int64_t> peak_in_use_{0};
  std::atomic<int64_t> allocations_{0};
  std::atomic<int64_t> system_allocations_{0};
};

// Never destroyed: tensors of static lifetime may be freed after it would have been.
CachingAllocator& allocator_of(Device device) {
  static auto* cpu = new CachingAllocator(
      {kCpu, kKeepsFreeBlocks,
       [](int, size_t size) { return std::aligned_alloc(kCpuAlignment, size); },
       [](int, void* block) noexcept { std::free(block); }});
#ifdef LOCKSTEP_WITH_CUDA
  // All work of a device is on one stream, so that a block may be used again at once.
  static auto* on_cuda = [] {
    auto* allocators = new std::vector<std::unique_ptr<CachingAllocator>>;
    for (int i = 0; i < cuda::device_count(); ++i) {
      allocators->push_back(std::make_unique<CachingAllocator>(Source{
          {DeviceType::kCuda, i}, cuda::caches_memory(), cuda::take_memory, cuda::free_memory}));
    }
    return allocators;
  }();
  if (device.is_cuda()) return *(*on_cuda)[static_cast<size_t>(device.index)];
#else
  (void)device;
#endif
  return *cpu;
}

}  // namespace

std::shared_ptr<void> allocate(size_t bytes, Device device) {
  require_device(device, "allocate");
  if (bytes == 0) return nullptr;
  check(bytes <= SIZE_MAX / 2, "allocate",
        [&] { return absl::StrCat("want at most 2^63 bytes, got ", bytes); });
  CachingAllocator& allocator = allocator_of(device);
  // Blocks that go back to CUDA's emulator are as long as they are wanted: it looks at their ends.
  const size_t size =
      device.is_cuda() && !allocator.caches() ? bytes : block_size(bytes, allocator.caches());
  void* block = allocator.take(size);
  return {block, [&allocator, size](void* p) { allocator.give_back(p, size); },
          SmallBlockAllocator<char>()};
}

MemoryStats memory_stats(Device device) {
  require_device(device, "memory_stats");
  return allocator_of(device).stats();
}

void empty_cache(Device device) {
  require_device(device, "empty_cache");
  allocator_of(device).empty_cache();
}

}  // namespace lockstep
