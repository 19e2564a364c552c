#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/kernels/cuda/ipc.h"
#include "lockstep/kernels/stream.h"

namespace lockstep::comm {

// Where a buffer of a rank's device is, as the rank tells the others.
struct DevicePlace {
  uint64_t address = 0;  // in its own process
  uint64_t number = 0;   // of the block that other processes may map; 0: they cannot
  uint64_t offset = 0;   // in that block
  cuda::IpcHandle handle;
};

// Device memory that other processes may map. Blocks that are let go are given out again. With the
// last owner of all they go back to CUDA, or, while others have some mapped (when CUDA does not say
// what freeing them does), when memory of this kind is next made or let go. Thread-safe.
class SharedDeviceMemory : public std::enable_shared_from_this<SharedDeviceMemory> {
 public:
  explicit SharedDeviceMemory(Device device);
  ~SharedDeviceMemory();
  SharedDeviceMemory(const SharedDeviceMemory&) = delete;
  SharedDeviceMemory& operator=(const SharedDeviceMemory&) = delete;

  // Zero at first, for the current stream. Once let go it is given out again behind what is then on
  // that stream, on the current one of the thread that lets it go, and on those of used_on().
  // What is let go in a capture stays as long as the graph. Throws kOutOfMemory, and
  // kInvalidArgument in a capture.
  std::shared_ptr<void> allocate(size_t bytes);
  // With number 0 where some of it is not from here.
  DevicePlace find(const void* data, size_t bytes);

  // `is_mapped` says whether others have any of it mapped; called in any thread. Once this object
  // is gone nobody maps more of it. Until it is set nobody has.
  void set_is_mapped(std::function<bool()> is_mapped);
  // No block that there is now goes back to CUDA, or to a new user: somebody may still write to it.
  void keep();

 private:
  struct Block {
    size_t bytes = 0;
    uint64_t number = 0;
    bool in_use = false;
    bool kept = false;
    std::optional<cuda::IpcHandle> handle = std::nullopt;  // once somebody wanted it
    Stream home = Stream();                                // while in use
    std::vector<Stream> users = {};                        // besides
    std::vector<Event> behind = {};                        // of its last user
  };
  using Blocks = std::map<uintptr_t, Block>;  // by address
  // The one that holds all of the bytes, or the end. REQUIRES: locked.
  Blocks::iterator block_of(const void* data, size_t bytes);

  // From CUDA. REQUIRES: not locked.
  void* take(size_t bytes) const;
  std::shared_ptr<void> owner_of(void* block);
  void release(void* block);
  bool note_use(const void* memory, const Stream& stream);

  const Device device_;
  std::mutex mutex_;  // guards what follows
  Blocks blocks_;
  uint64_t numbers_ = 0;
  std::function<bool()> is_mapped_;
  std::shared_ptr<void> told_;  // of uses; the first to go
};

}  // namespace lockstep::comm
