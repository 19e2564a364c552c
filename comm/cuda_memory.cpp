#include "lockstep/comm/cuda_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/cuda/captured_graph.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/cuda/stream_memory.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/memory.h"

namespace lockstep::comm {
namespace {

// What other processes map is pages of the device, with all that lies on them: blocks have pages of
// their own, but in the emulator, which looks at their ends.
size_t block_size(size_t bytes) {
  constexpr size_t kDevicePage = size_t{2} << 20;
  return cuda::caches_memory() ? (bytes + kDevicePage - 1) / kDevicePage * kDevicePage : bytes;
}

// Blocks without an owner.
struct Retired {
  Device device;
  std::vector<void*> blocks;
  std::vector<Event> behind;
  std::function<bool()> is_mapped;

  void give_back() const noexcept {
    const Stream own(device);
    for (const Event& event : behind) {
      try {
        own.wait(event);
      } catch (...) {
        // A device has failed, which its next user will be told: nothing there uses the blocks any
        // more, but others' work still may.
      }
    }
    try {
      if (cuda::caches_memory()) own.synchronize();  // to free it need wait for nothing
    } catch (...) {
    }
    for (void* block : blocks) cuda::free_memory(device, block, own);
  }
};

// Those that others still had mapped. Never destroyed: CUDA has them back when the process ends.
class Retirement {
 public:
  void add(Retired retired) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(retired));
  }
  void give_back_unmapped() {
    if (is_capturing()) return;  // CUDA frees nothing now, and nothing can be waited for
    std::vector<Retired> free;
    {
      const std::lock_guard lock(mutex_);
      const auto first = std::stable_partition(
          waiting_.begin(), waiting_.end(),
          [](const Retired& one) { return one.is_mapped != nullptr && one.is_mapped(); });
      free.assign(std::make_move_iterator(first), std::make_move_iterator(waiting_.end()));
      waiting_.erase(first, waiting_.end());
    }
    for (const Retired& one : free) one.give_back();
  }

 private:
  std::mutex mutex_;
  std::vector<Retired> waiting_;
};
Retirement& retirement() {
  static auto* instance = new Retirement;
  return *instance;
}

}  // namespace

SharedDeviceMemory::SharedDeviceMemory(Device device) : device_(device) {
  retirement().give_back_unmapped();
  told_ = cuda::tell_of_uses(
      [this](const void* memory, const Stream& stream) { return note_use(memory, stream); });
}

SharedDeviceMemory::~SharedDeviceMemory() {
  told_ = nullptr;
  Retired retired{device_, {}, {}, std::move(is_mapped_)};
  for (auto& [address, block] : blocks_) {
    if (block.kept) continue;
    retired.blocks.push_back(std::bit_cast<void*>(address));
    retired.behind.insert(retired.behind.end(), block.behind.begin(), block.behind.end());
  }
  retirement().add(std::move(retired));
  retirement().give_back_unmapped();
}

std::shared_ptr<void> SharedDeviceMemory::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  refuse_capture("allocate", "memory that other ranks reach is not the graph's; take it before");
  const Stream stream = current_stream(device_);
  const size_t size = block_size(bytes);
  std::unique_lock lock(mutex_);
  // The smallest that is large enough, and not twice as large.
  auto best = blocks_.end();
  for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
    const Block& block = it->second;
    const bool fits = !block.in_use && !block.kept && block.bytes >= size && block.bytes / 2 < size;
    if (fits && (best == blocks_.end() || block.bytes < best->second.bytes)) best = it;
  }
  if (best == blocks_.end()) {
    // Without the lock, for CUDA may wait for the device, whose work may wait for that of a rank
    // whose thread wants the lock.
    lock.unlock();
    void* memory = take(size);
    lock.lock();
    best = blocks_.emplace(std::bit_cast<uintptr_t>(memory), Block{size, ++numbers_}).first;
  }
  Block& block = best->second;
  void* memory = std::bit_cast<void*>(best->first);
  for (const Event& event : block.behind) stream.wait(event);
  cuda::set_zero(memory, bytes, stream);
  block.behind.clear();
  block.home = stream;
  block.in_use = true;
  return owner_of(memory);
}

std::shared_ptr<void> SharedDeviceMemory::owner_of(void* memory) {
  return {memory, [all = shared_from_this()](void* gone) { all->release(gone); }};
}

void* SharedDeviceMemory::take(size_t bytes) const {
  void* memory = cuda::take_memory(device_, bytes);
  if (memory == nullptr) {
    retirement().give_back_unmapped();
    empty_cache(device_);  // what lockstep::allocate() keeps is free too
    memory = cuda::take_memory(device_, bytes);
  }
  if (memory == nullptr) {
    throw Error(ErrorCode::kOutOfMemory, "allocate",
                concat("want ", bytes, " bytes on ", device_.name(),
                       " that other ranks can reach, but it has no more"));
  }
  return memory;
}

void SharedDeviceMemory::release(void* memory) {
  if (is_capturing()) return cuda::keep_for_replays(owner_of(memory));
  const std::lock_guard lock(mutex_);
  Block& block = blocks_.find(std::bit_cast<uintptr_t>(memory))->second;
  block.in_use = false;
  try {
    const Stream current = current_stream(device_);
    if (!(current == block.home)) block.behind.push_back(current.record());
    block.behind.push_back(block.home.record());
    for (const Stream& user : block.users) block.behind.push_back(user.record());
  } catch (...) {
    // The device has failed, which its next user will be told.
  }
  block.home = Stream(device_);
  block.users.clear();
}

auto SharedDeviceMemory::block_of(const void* data, size_t bytes) -> Blocks::iterator {
  const auto address = std::bit_cast<uintptr_t>(data);
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return blocks_.end();
  --after;
  const uintptr_t offset = address - after->first;
  const size_t size = after->second.bytes;
  return offset <= size && bytes <= size - offset ? after : blocks_.end();
}

bool SharedDeviceMemory::note_use(const void* memory, const Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto found = block_of(memory, 1);
  if (found == blocks_.end()) return false;
  Block& block = found->second;
  const bool known = stream == block.home ||
                     std::find(block.users.begin(), block.users.end(), stream) != block.users.end();
  if (block.in_use && !known) block.users.push_back(stream);
  return true;
}

DevicePlace SharedDeviceMemory::find(const void* data, size_t bytes) {
  DevicePlace place;
  place.address = std::bit_cast<uintptr_t>(data);
  const std::lock_guard lock(mutex_);
  const auto found = block_of(data, bytes);
  if (found == blocks_.end()) return place;
  auto& [begin, block] = *found;
  if (!block.handle) block.handle = cuda::export_memory(std::bit_cast<void*>(begin), device_);
  place.number = block.number;
  place.offset = place.address - begin;
  place.handle = *block.handle;
  return place;
}

void SharedDeviceMemory::set_is_mapped(std::function<bool()> is_mapped) {
  const std::lock_guard lock(mutex_);
  is_mapped_ = std::move(is_mapped);
}

void SharedDeviceMemory::keep() {
  const std::lock_guard lock(mutex_);
  for (auto& [address, block] : blocks_) block.kept = true;
}

}  // namespace lockstep::comm
