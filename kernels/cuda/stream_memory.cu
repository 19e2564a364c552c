#include "lockstep/kernels/cuda/stream_memory.h"

#include <algorithm>
#include <utility>

#include "lockstep/kernels/cuda/captured_graph.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/text.h"

namespace lockstep::cuda {
namespace {

// Of an event or a stream.
void wait_for(const auto& work) noexcept {
  try {
    work.synchronize();
  } catch (...) {
    // Its device has failed, and nothing is on its way there any more.
  }
}

// Of the graph that the calling thread captures; else 0.
uint64_t current_pool() { return is_capturing() ? capture->pool : 0; }

using Use = std::function<bool(const void*, const Stream&)>;

// Who is told of uses. Never destroyed: memory may outlive it.
struct Told {
  std::mutex mutex;
  std::vector<const Use*> uses;
};
Told& told() {
  static auto* instance = new Told;
  return *instance;
}

}  // namespace

std::shared_ptr<void> tell_of_uses(Use use) {
  const std::shared_ptr<Use> owned(new Use(std::move(use)), [](Use* gone) {
    {
      const std::lock_guard lock(told().mutex);
      std::erase(told().uses, gone);
    }
    delete gone;
  });
  const std::lock_guard lock(told().mutex);
  told().uses.push_back(owned.get());
  return owned;
}

bool used_elsewhere(const void* memory, const Stream& stream) {
  const std::lock_guard lock(told().mutex);
  return std::any_of(told().uses.begin(), told().uses.end(),
                     [&](const Use* use) { return (*use)(memory, stream); });
}

void* StreamAllocator::take_free(size_t size, const Stream& stream, uint64_t pool) {
  std::vector<Free>& blocks = free_[size];
  for (size_t i = blocks.size(); i-- > 0;) {
    Free& free = blocks[i];
    if (free.pool != pool) continue;
    if (source_.device.is_cpu()) {
      // The host itself will touch it, and cannot be put behind an event.
      const auto done = [](const Event& event) { return event.done(); };
      if (!std::all_of(free.behind.begin(), free.behind.end(), done)) continue;
    } else {
      if (!(free.home == stream)) continue;
      for (const Event& event : free.behind) stream.wait(event);
    }
    void* block = free.block;
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
    stats_.cached -= static_cast<int64_t>(size);
    return block;
  }
  return nullptr;
}

void* StreamAllocator::take_of_others(size_t size, const Stream& stream) {
  std::vector<Free>& blocks = free_[size];
  const auto found =
      std::find_if(blocks.begin(), blocks.end(), [](const Free& free) { return free.pool == 0; });
  if (found == blocks.end() || source_.device.is_cpu()) return nullptr;
  const Free& free = *found;
  // An event of now: later than need be, and none had to be made for every block given back.
  stream.wait(free.home.record());
  for (const Event& event : free.behind) stream.wait(event);
  void* block = free.block;
  blocks.erase(found);
  stats_.cached -= static_cast<int64_t>(size);
  ++stats_.across_streams;
  return block;
}

void* StreamAllocator::take(size_t bytes) {
  // Blocks that go back to CUDA's emulator are as long as they are wanted: it looks at their ends.
  const size_t size = caches_memory() ? block_size(bytes) : bytes;
  const Stream stream = current_stream(source_.device);
  const uint64_t pool = current_pool();
  if (source_.device.is_cpu())
    refuse_capture("allocate_pinned", "the host would wait for a device");
  const auto find = [&](auto take) {
    const std::lock_guard lock(mutex_);
    void* block = take();
    if (block != nullptr) note_taken(block, {size, stream, {}, pool});
    return block;
  };
  void* block = find([&] {
    ++stats_.allocations;
    return take_free(size, stream, pool);
  });
  if (block == nullptr) block = take_from_system(size, stream, pool);
  // In a capture nothing may wait, or be freed.
  if (block == nullptr && pool == 0) {
    block = find([&] { return take_of_others(size, stream); });
    if (block == nullptr) {
      empty_cache();
      block = take_from_system(size, stream, pool);
    }
  }
  if (block == nullptr) throw_out_of_memory(size);
  return block;
}

void StreamAllocator::note_taken(void* block, Live live) {
  stats_.in_use += static_cast<int64_t>(live.size);
  stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  live_[reinterpret_cast<uintptr_t>(block)] = std::move(live);
}

void* StreamAllocator::take_from_system(size_t size, const Stream& stream, uint64_t pool) {
  void* block = source_.take(source_.device, size);
  if (block == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  ++stats_.system_allocations;
  note_taken(block, {size, stream, {}, pool});
  return block;
}

void StreamAllocator::give_back(void* block) noexcept {
  std::vector<Free> leaving;
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(reinterpret_cast<uintptr_t>(block));
    Live live = std::move(found->second);
    live_.erase(found);
    stats_.in_use -= static_cast<int64_t>(live.size);
    const uint64_t pool = current_pool();
    if (live.pool == pool) {
      make_free(block, live, leaving);
    } else {
      stats_.cached += static_cast<int64_t>(live.size);
      held_.push_back({block, live, live.pool != 0 ? live.pool : pool});
    }
  }
  give_to_system(leaving);
}

void StreamAllocator::make_free(void* block, const Live& live,
                                std::vector<Free>& leaving) noexcept {
  Free free{block, live.home, {}, live.pool};
  try {
    for (const Stream& user : live.users) free.behind.push_back(user.record());
    const Stream current = current_stream(source_.device);
    if (!(current == live.home)) free.behind.push_back(current.record());
    if (caches_memory() || live.pool != 0) {
      free_[live.size].push_back(std::move(free));
      stats_.cached += static_cast<int64_t>(live.size);
      return;
    }
    if (source_.device.is_cuda()) {
      for (const Event& event : free.behind) live.home.wait(event);
    }
  } catch (...) {
    // The device has failed, which its next user will be told.
  }
  leaving.push_back(std::move(free));
}

void StreamAllocator::give_to_system(const std::vector<Free>& leaving) noexcept {
  for (const Free& free : leaving) {
    // What frees memory at once is not promised to wait for those that use it. Without the cache
    // the stream that frees the block waits for them.
    if (source_.device.is_cpu() || caches_memory()) {
      wait_for(free.home);
      for (const Event& event : free.behind) wait_for(event);
    }
    source_.give_back(source_.device, free.block, free.home);
  }
}

StreamAllocator::Live* StreamAllocator::find(const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto after = live_.upper_bound(address);
  if (after == live_.begin()) return nullptr;
  auto& [begin, live] = *--after;
  return address - begin < live.size ? &live : nullptr;
}

bool StreamAllocator::used_on(const void* memory, const Stream& stream) {
  std::lock_guard lock(mutex_);
  Live* live = find(memory);
  if (live == nullptr) return false;
  const bool known = stream == live->home ||
                     std::find(live->users.begin(), live->users.end(), stream) != live->users.end();
  if (!known) live->users.push_back(stream);
  return true;
}

bool StreamAllocator::is_of_one_stream(const void* memory, const Stream& stream) {
  std::lock_guard lock(mutex_);
  const Live* live = find(memory);
  return live != nullptr && live->home == stream && live->users.empty();
}

bool StreamAllocator::holds(const void* memory) {
  std::lock_guard lock(mutex_);
  return find(memory) != nullptr;
}

void StreamAllocator::end_pool(uint64_t pool) noexcept {
  std::vector<Free> leaving;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [begin, live] : live_) {
      if (live.pool == pool) live.pool = 0;
    }
    const auto end = [&](void* block, size_t size, const Stream& home, std::vector<Stream> users) {
      stats_.cached -= static_cast<int64_t>(size);
      make_free(block, {size, home, std::move(users)}, leaving);
    };
    const auto is_ours = [&](const auto& one) { return one.pool == pool; };
    for (auto& [size, blocks] : free_) {
      // Their events were the capture's, which has been run.
      std::vector<Free> ours;
      std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(ours), is_ours);
      std::erase_if(blocks, is_ours);
      for (const Free& free : ours) end(free.block, size, free.home, {});
    }
    for (const Held& held : held_) {
      if (is_ours(held)) end(held.block, held.live.size, held.live.home, held.live.users);
    }
    std::erase_if(held_, is_ours);
  }
  give_to_system(leaving);
}

void StreamAllocator::empty_cache() {
  refuse_capture("empty_cache", "it would wait for the device");
  std::vector<Free> leaving;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [size, blocks] : free_) {
      for (const Free& free : blocks) {
        if (free.pool != 0) continue;
        leaving.push_back(free);
        stats_.cached -= static_cast<int64_t>(size);
      }
      std::erase_if(blocks, [](const Free& free) { return free.pool == 0; });
    }
  }
  give_to_system(leaving);
}

MemoryStats StreamAllocator::stats() {
  std::lock_guard lock(mutex_);
  return stats_;
}

void StreamAllocator::throw_out_of_memory(size_t size) {
  const std::lock_guard lock(mutex_);
  constexpr size_t kShown = 4;
  std::map<size_t, int64_t> counts;
  for (const auto& [begin, live] : live_) ++counts[live.size];
  std::vector<std::pair<size_t, int64_t>> held(counts.begin(), counts.end());
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) {
    return a.first * static_cast<size_t>(a.second) > b.first * static_cast<size_t>(b.second);
  });
  std::string blocks;
  for (size_t i = 0; i < std::min(kShown, held.size()); ++i) {
    blocks += str_cat(i == 0 ? ": " : ", ", held[i].second, " of ", held[i].first);
  }
  if (held.size() > kShown) blocks += " and smaller ones";
  std::string there = "the system has no more pinned memory";
  if (source_.device.is_cuda()) {
    const MemoryInfo info = memory_info(source_.device);
    there = str_cat("it has ", info.free, " free of ", info.total);
  }
  throw Error(
      ErrorCode::kOutOfMemory, "allocate",
      str_cat("want ", size, " bytes on ", source_.device.name(), failed_in(false), ", but ", there,
              "; ", stats_.in_use, " bytes are in use here by ", live_.size(), " blocks", blocks,
              "; what else is taken is CUDA's own or other processes'"));
}

}  // namespace lockstep::cuda
