#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/stream.h"

namespace lockstep::cuda {

// The caching allocator of a CUDA device's memory, or of pinned memory: a block belongs to the
// stream that was current when it was taken. Given back, it is free for that stream at once, behind
// events of the other streams that used it. Only where the device has no more is it given to
// another stream, which then waits for its own: a stream that took another's blocks at every step
// would run after it and never beside it. Pinned memory belongs to no stream, and is free once the
// streams that used it have passed it.
//
// What a thread takes while it captures a graph is of the graph's pool: given back meanwhile, it is
// for the rest of the capture, and given back later, for nobody until end_pool(), for replays use
// it. So is what others took and what is given back in a capture, which may have seen uses of it.
//
// Thread-safe. Its lock is never held where CUDA may wait for a device: the work there may wait for
// that of a rank whose thread wants the lock.
class StreamAllocator {
 public:
  struct Source {
    Device device;                              // kCpu: pinned memory
    void* (*take)(Device device, size_t size);  // null where there is no more
    void (*give_back)(Device device, void* block, const Stream& stream) noexcept;
  };

  explicit StreamAllocator(const Source& source) : source_(source) {}

  // Throws Error(kOutOfMemory) that says what holds the memory.
  void* take(size_t bytes);
  void give_back(void* block) noexcept;
  // False where `memory` is in no live block.
  bool used_on(const void* memory, const Stream& stream);
  // False where `memory` is in no live block, too.
  bool is_of_one_stream(const void* memory, const Stream& stream);
  bool holds(const void* memory);
  void empty_cache();
  MemoryStats stats();
  // Once all that uses its memory has run.
  void end_pool(uint64_t pool) noexcept;

 private:
  struct Live {
    size_t size = 0;
    Stream home;
    std::vector<Stream> users = {};  // besides
    uint64_t pool = 0;               // of a graph; 0: of none
  };
  struct Free {
    void* block = nullptr;
    Stream home;
    std::vector<Event> behind;
    uint64_t pool = 0;
  };
  struct Held {  // given back, but not free before its pool ends
    void* block = nullptr;
    Live live;
    uint64_t pool = 0;
  };

  // REQUIRE the lock. Null where there is none.
  Live* find(const void* memory);
  void* take_free(size_t size, const Stream& stream, uint64_t pool);
  void* take_of_others(size_t size, const Stream& stream);
  void note_taken(void* block, Live live);
  // What is not kept is added to `leaving`, for give_to_system() once the lock is given up.
  void make_free(void* block, const Live& live, std::vector<Free>& leaving) noexcept;

  // REQUIRE that the lock is not held.
  void* take_from_system(size_t size, const Stream& stream, uint64_t pool);  // null: no more
  void give_to_system(const std::vector<Free>& leaving) noexcept;
  [[noreturn]] void throw_out_of_memory(size_t size);

  const Source source_;
  std::mutex mutex_;  // guards what follows
  std::map<uintptr_t, Live> live_;
  std::unordered_map<size_t, std::vector<Free>> free_;
  std::vector<Held> held_;
  MemoryStats stats_;
};

// The same of all allocators; in memory.cpp.
void end_pool(uint64_t pool) noexcept;

// For memory that is of no StreamAllocator: lockstep::used_on() calls `use` with what it was given,
// which returns whether the memory is its own, until the last owner lets go. Thread-safe; `use`
// must neither call used_on() nor this.
std::shared_ptr<void> tell_of_uses(std::function<bool(const void*, const Stream&)> use);
// Returns whether one of those knew the memory.
bool used_elsewhere(const void* memory, const Stream& stream);

}  // namespace lockstep::cuda
