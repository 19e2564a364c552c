#include "lockstep/kernels/memory.h"

#include <sys/mman.h>

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
#include "lockstep/kernels/transfer.h"
#ifdef LOCKSTEP_WITH_CUDA
#include "lockstep/kernels/cuda/captured_graph.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/cuda/stream_memory.h"
#endif

namespace lockstep {
namespace {

size_t round_up_to_line(size_t bytes) {
  return (bytes + kCpuAlignment - 1) / kCpuAlignment * kCpuAlignment;
}

// Null where the system has no more. Linux is asked for large pages where a block has room for
// some, which it then sees to on the first touch: ops that walk through columns take half the time,
// for each step of theirs is on another page.
void* from_system(size_t size) {
  constexpr size_t kLargePage = size_t{2} << 20;
  const bool large = size >= 2 * kLargePage;
  void* block = nullptr;
  if (posix_memalign(&block, large ? kLargePage : kCpuAlignment, size) != 0) return nullptr;
#ifdef MADV_HUGEPAGE
  // What is beyond the last whole page stays on small ones, and costs no memory.
  if (large) madvise(block, size / kLargePage * kLargePage, MADV_HUGEPAGE);
#endif
  return block;
}

// Of the CPU.
class CachingAllocator {
 public:
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
    void* block = from_system(size);
    if (block == nullptr) {
      empty_cache();
      block = from_system(size);
    }
    if (block == nullptr) throw_out_of_memory(size);
    system_allocations_.fetch_add(1, std::memory_order_relaxed);
    count_in_use(size);
    return block;
  }

  void give_back(void* block, size_t size) noexcept {
    in_use_.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
    if (is_small(size)) return give_small_block(block, size);
    if (!kKeepsFreeBlocks) return std::free(block);
    std::lock_guard lock(mutex_);
    try {
      free_[size].push_back(block);
      cached_ += static_cast<int64_t>(size);
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
    cached_ = 0;
  }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return {in_use_, peak_in_use_, cached_, allocations_, system_allocations_, 0};
  }

 private:
  static bool is_small(size_t size) { return size <= kLargestSmallBlock; }

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
    throw Error(ErrorCode::kOutOfMemory, "allocate",
                absl::StrCat("want ", size, " bytes on cpu, but the system has no more; ",
                             in_use_.load(), " bytes are in use"));
  }

  void count_in_use(size_t size) {
    const auto bytes = static_cast<int64_t>(size);
    const int64_t now = in_use_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t peak = peak_in_use_.load(std::memory_order_relaxed);
    while (now > peak &&
           !peak_in_use_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }

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
CachingAllocator& cpu_allocator() {
  static auto* allocator = new CachingAllocator;
  return *allocator;
}

#ifdef LOCKSTEP_WITH_CUDA
cuda::StreamAllocator& allocator_of(Device device) {
  static auto* allocators = [] {
    auto* made = new std::vector<std::unique_ptr<cuda::StreamAllocator>>;
    for (int i = 0; i < cuda::device_count(); ++i) {
      made->push_back(std::make_unique<cuda::StreamAllocator>(cuda::StreamAllocator::Source{
          {DeviceType::kCuda, i}, cuda::take_memory, cuda::free_memory}));
    }
    return made;
  }();
  return *(*allocators)[static_cast<size_t>(device.index)];
}

// Null where there is no device.
cuda::StreamAllocator* pinned_allocator() {
  static auto* allocator =
      cuda::device_count() == 0
          ? nullptr
          : new cuda::StreamAllocator({kCpu, cuda::take_pinned, cuda::free_pinned});
  return allocator;
}

}  // namespace

void cuda::end_pool(uint64_t pool) noexcept {
  for (int i = 0; i < device_count(); ++i) allocator_of({DeviceType::kCuda, i}).end_pool(pool);
  pinned_allocator()->end_pool(pool);
}

namespace {

std::shared_ptr<void> allocate_from(cuda::StreamAllocator& allocator, size_t bytes) {
  return {allocator.take(bytes), [&allocator](void* block) { allocator.give_back(block); },
          SmallBlockAllocator<char>()};
}
#endif

void check_bytes(size_t bytes) {
  check(bytes <= SIZE_MAX / 2, "allocate",
        [&] { return absl::StrCat("want at most 2^63 bytes, got ", bytes); });
}

}  // namespace

size_t block_size(size_t bytes) {
  if (bytes <= kLargestSmallBlock) return round_up_to_line(bytes);
  const size_t step = std::max(kCpuAlignment, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

std::shared_ptr<void> allocate(size_t bytes, Device device) {
  require_device(device, "allocate");
  if (bytes == 0) return nullptr;
  check_bytes(bytes);
#ifdef LOCKSTEP_WITH_CUDA
  if (device.is_cuda()) {
    const auto take = [&] { return allocate_from(allocator_of(device), bytes); };
    return cuda::is_in_part() ? cuda::take_in_part(bytes, take) : take();
  }
#endif
  CachingAllocator& allocator = cpu_allocator();
  const size_t size = kKeepsFreeBlocks ? block_size(bytes) : round_up_to_line(bytes);
  return {allocator.take(size), [&allocator, size](void* p) { allocator.give_back(p, size); },
          SmallBlockAllocator<char>()};
}

std::shared_ptr<void> allocate_pinned(size_t bytes) {
  if (bytes == 0) return nullptr;
  check_bytes(bytes);
#ifdef LOCKSTEP_WITH_CUDA
  if (pinned_allocator() != nullptr) return allocate_from(*pinned_allocator(), bytes);
#endif
  return allocate(bytes);
}

bool is_pinned(const void* memory) {
#ifdef LOCKSTEP_WITH_CUDA
  return pinned_allocator() != nullptr && pinned_allocator()->holds(memory);
#else
  (void)memory;
  return false;
#endif
}

bool is_of_one_stream(const void* memory, const Stream& stream) {
#ifdef LOCKSTEP_WITH_CUDA
  return allocator_of(stream.device()).is_of_one_stream(memory, stream);
#else
  (void)memory;
  (void)stream;
  return false;
#endif
}

void used_on(const void* memory, const Stream& stream) {
#ifdef LOCKSTEP_WITH_CUDA
  if (stream.device().is_cpu() || memory == nullptr) return;
  if (pinned_allocator()->used_on(memory, stream)) return;
  for (int i = 0; i < cuda::device_count(); ++i) {
    if (allocator_of({DeviceType::kCuda, i}).used_on(memory, stream)) return;
  }
  cuda::used_elsewhere(memory, stream);
#else
  (void)memory;
  (void)stream;
#endif
}

Device device_of(const void* memory) {
#ifdef LOCKSTEP_WITH_CUDA
  if (cuda::device_count() > 0) return cuda::device_of(memory);
#else
  (void)memory;
#endif
  return kCpu;
}

Device device_of_ours(const void* memory) {
#ifdef LOCKSTEP_WITH_CUDA
  if (cuda::may_be_taken(memory)) return cuda::device_of(memory);
#else
  (void)memory;
#endif
  return kCpu;
}

MemoryStats memory_stats(Device device) {
  require_device(device, "memory_stats");
#ifdef LOCKSTEP_WITH_CUDA
  if (device.is_cuda()) return allocator_of(device).stats();
#endif
  return cpu_allocator().stats();
}

MemoryStats pinned_memory_stats() {
#ifdef LOCKSTEP_WITH_CUDA
  if (pinned_allocator() != nullptr) return pinned_allocator()->stats();
#endif
  return {};
}

void empty_cache(Device device) {
  require_device(device, "empty_cache");
#ifdef LOCKSTEP_WITH_CUDA
  if (device.is_cuda()) return allocator_of(device).empty_cache();
  if (pinned_allocator() != nullptr) pinned_allocator()->empty_cache();
#endif
  cpu_allocator().empty_cache();
}

}  // namespace lockstep
