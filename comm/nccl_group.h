#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/comm/collective.h"
#include "lockstep/kernels/stream.h"

namespace lockstep::comm {

// What Lockstep asks of NCCL, without its header: nccl_group.cpp is the one file that has it, and
// tests/simt/nccl.cpp stands in for that one in the emulator. The library is looked for when a
// program first asks, so that programs run without. Thread-safe.
class NcclGroup {
 public:
  // By which the ranks of a group find each other.
  using Id = std::array<char, 128>;

  // Why there is no NCCL here, and what to do; empty where there is.
  static std::string why_not();
  // Two ranks of one machine whose devices have one name share a device. Throws kDevice.
  static std::string device_name(Device device);
  // Throws kDevice.
  static Id make_id();

  // Every rank makes one with rank 0's id; what it does from then on it does on `stream`. While a
  // call waits for NCCL it calls `look` again and again, which throws what makes it useless to
  // wait. Throws that, and kDevice that says what NCCL says.
  NcclGroup(const Id& id, int rank, int size, const Stream& stream, std::function<void()> look);
  // Ends in order where the other ranks of this machine do so too, and is left to a thread where
  // they do not soon.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Puts a fold, an all_gather or a broadcast on the stream. REQUIRES: the ranks agree about it.
  // Throws as the constructor does, and kCancelled after abort().
  void put(const Collective& collective);
  // Bytes for another rank, or from it.
  struct Part {
    int peer = 0;
    bool sends = false;
    void* data = nullptr;
    int64_t bytes = 0;
  };
  // Puts all these on the stream, where they go side by side. REQUIRES: the ranks agree about them.
  // Throws as put() does; `op` begins the message.
  void exchange(std::string_view op, std::span<const Part> parts);

  // Lets NCCL read and write memory where it is, without copies. The handle is for deregister(),
  // once the stream has passed what uses it and before it is freed; null where NCCL will not.
  void* register_memory(void* memory, size_t bytes) noexcept;
  void deregister(void* handle) noexcept;

  // What NCCL has noticed by itself; empty where that is nothing.
  std::string error();
  // What is on the stream ends, with undefined results. Bounded in time.
  void abort() noexcept;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
