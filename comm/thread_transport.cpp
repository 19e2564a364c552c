#include "lockstep/comm/thread_transport.h"

#include <sched.h>

#include <bit>
#include <cstring>

#include "lockstep/comm/host_memory.h"
#include "lockstep/comm/shared_group.h"

namespace lockstep::comm {
namespace {

// What the threads share; the last of them frees it.
struct Hub {
  Hub(int size, size_t staging_bytes) : members(new Member[size]()) {
    for (int i = 0; i < size; ++i) {
      // Pages are made when they are touched: a rank that stages nothing costs no memory.
      staging.push_back(allocate_pages(staging_bytes));
    }
  }

  std::unique_ptr<Member[]> members;
  std::vector<std::shared_ptr<void>> staging;
};

class ThreadTransport final : public SharedGroup {
 public:
  ThreadTransport(int rank, int size, std::chrono::milliseconds timeout, std::shared_ptr<Hub> hub,
                  bool crowded)
      : SharedGroup(rank, size, timeout), hub_(std::move(hub)) {
    for (int i = 0; i < size; ++i) {
      peers_[i] = {&hub_->members[i], static_cast<std::byte*>(hub_->staging[i].get())};
    }
    crowded_ = crowded;
  }

  static size_t hub_staging_bytes(int size) { return staging_bytes(size); }

  std::string_view name() const override { return "thread"; }

  std::shared_ptr<void> allocate(size_t bytes) override { return allocate_pages(bytes); }
  std::string pair_text(int) const override { return "one process: all memory is shared"; }

 protected:
  Place place_of(const void* data, size_t) override { return std::bit_cast<Place>(data); }
  std::byte* reach(int, Place place) override { return std::bit_cast<std::byte*>(place); }
  bool read_peer(int, uint64_t address, void* to, size_t bytes) override {
    std::memcpy(to, std::bit_cast<const void*>(address), bytes);
    return true;
  }
  bool is_dead(int) override { return false; }

 private:
  std::shared_ptr<Hub> hub_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_thread_transports(int size,
                                                               std::chrono::milliseconds timeout) {
  auto hub = std::make_shared<Hub>(size, ThreadTransport::hub_staging_bytes(size));
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  const bool crowded = size > CPU_COUNT(&cores);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(std::make_unique<ThreadTransport>(rank, size, timeout, hub, crowded));
  }
  return transports;
}

}  // namespace lockstep::comm
