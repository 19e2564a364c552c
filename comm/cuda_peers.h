#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/shared_group.h"
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

// Device memory that other processes may map. Blocks that are let go are given out again, and go
// back to CUDA with the last owner of all: those who have mapped one need not be told. Thread-safe.
class SharedDeviceMemory : public std::enable_shared_from_this<SharedDeviceMemory> {
 public:
  explicit SharedDeviceMemory(Device device) : device_(device) {}
  ~SharedDeviceMemory();
  SharedDeviceMemory(const SharedDeviceMemory&) = delete;
  SharedDeviceMemory& operator=(const SharedDeviceMemory&) = delete;

  // Zero at first, for the current stream. Throws kOutOfMemory.
  std::shared_ptr<void> allocate(size_t bytes);
  // With number 0 where some of it is not from here.
  DevicePlace find(const void* data, size_t bytes);

 private:
  struct Block {
    size_t bytes = 0;
    uint64_t number = 0;
    bool in_use = false;
    std::optional<cuda::IpcHandle> handle = std::nullopt;  // once somebody wanted it
    Event let_go = {};                                     // by its last user
  };
  void release(void* block);

  const Device device_;
  std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;
  uint64_t numbers_ = 0;
};

// How the ranks of a group reach each other's device memory and order their streams: by addresses
// where they are threads of one process, whatever the memory, and by CUDA's handles between
// processes, for SharedDeviceMemory alone. Used by the thread that runs collectives.
class CudaPeers {
 public:
  // Every rank makes one at the same place in its sequence of collectives. Throws what those throw.
  CudaPeers(SharedGroup& group, Device device);

  // Why some rank cannot reach another's memory; the same on every rank, and empty where all can.
  const std::string& why_not() const { return why_not_; }
  // Whether ranks are of several processes.
  bool apart() const { return apart_; }

  std::shared_ptr<void> allocate(size_t bytes) { return memory_->allocate(bytes); }
  DevicePlace place_of(const void* data, size_t bytes);
  // Whether every rank can reach it.
  bool is_reachable(const DevicePlace& place) const { return !apart_ || place.number != 0; }
  std::byte* reach(int rank, const DevicePlace& place);

  // A rank records the first where its buffers may be read and written, and the second where it has
  // finished with the others'; each once in a meeting, and the others wait for it after that.
  const Event& ready(int rank) const { return peers_[static_cast<size_t>(rank)].ready; }
  const Event& done(int rank) const { return peers_[static_cast<size_t>(rank)].done; }

  // Lets streams go on that wait for events of other processes, which may have died before they
  // came to them. What is computed from then on is undefined.
  void let_go() noexcept;

 private:
  struct Peer {
    bool is_here = false;  // in this process
    Event ready;
    Event done;
  };
  struct Card;
  Card own_card();
  void know(int rank, const Card& card);
  void agree(SharedGroup& group);

  const int rank_;
  const Device device_;
  const std::shared_ptr<SharedDeviceMemory> memory_;
  std::vector<Peer> peers_;
  std::shared_ptr<void> probe_;  // that the others map to see whether they can
  std::map<std::pair<int, uint64_t>, std::shared_ptr<void>> mapped_;  // by rank and number
  bool apart_ = false;
  std::string why_not_;
};

}  // namespace lockstep::comm
