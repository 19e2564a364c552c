#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

// A collective in the queue, or a send or recv, and how it ended.
struct Operation {
  // Written out: what has no constructor of its own is set to zero as a whole first, which takes as
  // long as all the rest.
  Operation(Collective&& what, int64_t recv_bytes, bool is_large)
      : collective(std::move(what)), bytes(recv_bytes), large(is_large) {}

  Collective collective;
  const int64_t bytes;               // of its recv
  const bool large;                  // worth waking a thread for
  std::optional<Transfer> transfer;  // where collective.is_transfer()
  uint64_t number = 0;               // in the queue; the first is 1
  Clock::time_point submitted;       // where it is large
  std::atomic<bool> finished{false};
  std::optional<Failure> failure;  // written before `finished`
};

// Runs the collectives of one communicator in order: in the thread of whoever waits for one, or in
// a thread of its own where nobody waits. A thread hop costs more than a small collective, so that
// thread leaves new work alone for a moment, unless it was the one to run the last large
// collective: then the caller goes on with something else, and large work is begun at once.
//
// Sends and receives that follow each other run side by side, and each ends for itself: whoever
// waits for one leaves the others to the next who waits.
class OperationQueue {
 public:
  // `about_ranks` ends the message of every failure: who the ranks of this group are. May be empty.
  OperationQueue(std::unique_ptr<Transport> transport, std::string about_ranks,
                 FlightRecorder::About about);
  // REQUIRES: close() was called.
  ~OperationQueue() = default;
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  // Numbers the collective and queues it. After a failure it is finished at once, with that.
  std::shared_ptr<Operation> submit(Collective&& collective);
  // Returns once it has finished; throws its failure.
  void wait(Operation& operation);
  // What is not finished, and all that is submitted later, fails with kCancelled and `why`.
  void abort(std::string_view why);
  // Leaves the group: cancels what is not finished. Idempotent.
  void close() noexcept;

  Transport& transport() { return *transport_; }

 private:
  bool has_work() const { return !pending_.empty() || !transfers_.empty(); }
  // Goes on with what is next: until it is finished, or, with transfers, until `wanted` is (null:
  // all). REQUIRES: locked, nothing runs, has_work(). Unlocks while it runs.
  void run_next(std::unique_lock<std::mutex>& lock, bool in_worker, const Operation* wanted);
  void run_collective(std::unique_lock<std::mutex>& lock, bool in_worker);
  // What the collective needs besides its buffers is put into `copy`.
  void run(const Collective& collective, std::shared_ptr<void>& copy);
  void show_on_device(const Collective& collective) const;
  void run_transfers(std::unique_lock<std::mutex>& lock, const Operation* wanted);
  // Keeps the first failure, and leaves the group.
  void fail(std::unique_lock<std::mutex>& lock, Failure failure);
  void finish(Operation& operation);
  void finish_with_failure(Operation& operation);
  void fail_pending();
  void work();

  const std::unique_ptr<Transport> transport_;
  const std::string about_ranks_;
  const int world_rank_;
  const std::string track_;  // of its thread in the timeline
  FlightRecorder recorder_;
  std::mutex mutex_;  // guards what follows
  std::deque<std::shared_ptr<Operation>> pending_;
  std::vector<std::shared_ptr<Operation>> transfers_;  // begun, and before all that is pending
  std::optional<Failure> failure_;                     // the first
  uint64_t submitted_ = 0;
  uint64_t collectives_ = 0;  // of those
  bool running_ = false;
  bool runs_transfers_ = false;
  bool left_ = false;  // the transport was told to leave
  bool closing_ = false;
  bool prompt_ = false;  // the caller is one who goes on while large collectives run
  bool hurry_ = false;   // the worker was woken to run what is pending
  bool asleep_ = false;  // the worker waits until it is woken
  int waiters_ = 0;
  std::condition_variable done_;
  std::condition_variable wake_;
  std::thread worker_;
};

}  // namespace lockstep::comm
