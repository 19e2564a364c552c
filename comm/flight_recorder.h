#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/collective.h"
#include "lockstep/comm/flight_file.h"

namespace lockstep::comm {

// The last collectives of one communicator on this rank, for the day that something goes wrong:
// dump() writes those of all communicators of this rank into one file, which `lockstep doctor`
// compares with the other ranks' files.
//
// One thread at a time calls queued(), started() and finished(); dump() may run beside them, in
// any thread. Recording costs a few stores, and where times are wanted looks at the processor's
// counter.
class FlightRecorder {
 public:
  static constexpr size_t kEntries = 1024;  // a power of two: an entry is found without a division

  // Who records: the group's name, its transport, this rank in it, and the world's numbers of its
  // ranks, by rank.
  struct About {
    std::string group;
    std::string transport;
    int rank = 0;
    std::vector<int> world_ranks;
  };

  explicit FlightRecorder(About about);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // `timed`: whether the time of this one matters; a look at the processor's counter takes about
  // 12 ns, which a small collective would feel. Of others every eighth has it.
  void queued(const Collective& collective, bool timed) {
    Entry& entry = entries_[collective.sequence % kEntries];
    entry.state.store(kQueued, std::memory_order_relaxed);
    entry.sequence.store(collective.sequence, std::memory_order_relaxed);
    entry.code.store(collective.request.code(), std::memory_order_relaxed);
    entry.count.store(collective.request.count, std::memory_order_relaxed);
    const bool looks = timed || collective.sequence % 8 == 1;
    entry.queued.store(looks ? ticks() : 0, std::memory_order_relaxed);
    entry.started.store(0, std::memory_order_relaxed);
    entry.finished.store(0, std::memory_order_relaxed);
    asked_.store(collective.sequence, std::memory_order_relaxed);
  }
  void started(const Collective& collective, bool timed) {
    Entry& entry = entries_[collective.sequence % kEntries];
    entry.state.store(kStarted, std::memory_order_relaxed);
    if (timed) entry.started.store(ticks(), std::memory_order_relaxed);
  }
  void finished(const Collective& collective, bool well, bool timed) {
    Entry& entry = entries_[collective.sequence % kEntries];
    entry.state.store(well ? kDone : kFailed, std::memory_order_relaxed);
    if (timed || !well) entry.finished.store(ticks(), std::memory_order_relaxed);
  }

  // Writes the file of this rank, in place of an earlier one, into the folder that LOCKSTEP_RECORD
  // names; without it into lockstep-UID in TMPDIR or /tmp. Returns the file's name; "" where
  // LOCKSTEP_RECORD is "off" or nothing could be written. Not more than a file per rank is made.
  std::string dump(std::string_view error) const noexcept;

 private:
  enum State : uint64_t { kQueued, kStarted, kDone, kFailed };
  // One cache line, written by one thread and read by dump().
  struct alignas(64) Entry {
    std::atomic<uint64_t> sequence{0};
    std::atomic<uint64_t> code{0};
    std::atomic<int64_t> count{0};
    std::atomic<uint64_t> state{kQueued};
    std::atomic<int64_t> queued{0};
    std::atomic<int64_t> started{0};
    std::atomic<int64_t> finished{0};
  };

  // A cheap clock of unknown rate, which runs on all cores alike.
  static int64_t ticks() {
#if defined(__x86_64__)
    return static_cast<int64_t>(__builtin_ia32_rdtsc());
#else
    return std::chrono::steady_clock::now().time_since_epoch().count();
#endif
  }

  class Wall;
  FlightGroup group(const Wall& wall) const;

  const About about_;
  const int64_t first_ticks_;
  const std::chrono::steady_clock::time_point first_time_;
  std::atomic<uint64_t> asked_{0};  // the newest sequence
  std::vector<Entry> entries_;
};

}  // namespace lockstep::comm
