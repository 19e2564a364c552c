#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/comm/transport.h"
#include "lockstep/kernels/stream.h"

namespace lockstep::comm {

// Watches collectives that a stream still has to come to, in a thread of its own: the process of a
// rank that others wait for may die, and no stream would ever go on. Thread-safe.
class CudaWatch {
 public:
  // `find_loss` says which rank is lost, "rank 2 died: ...", or nothing; `let_go` makes streams go
  // on that wait for others, and is called again and again until they have ended. Both are called
  // in any thread.
  CudaWatch(int rank, std::chrono::milliseconds timeout, std::function<std::string()> find_loss,
            std::function<void()> let_go);
  ~CudaWatch();
  CudaWatch(const CudaWatch&) = delete;
  CudaWatch& operator=(const CudaWatch&) = delete;

  void add(std::string_view op, Event completed);
  // Throws what ended the group, a rank's death, the timeout or a device's error, if anything has.
  void raise_failure() const;
  // Returns once all that was added has completed, or there is a failure.
  void drain();

 private:
  struct Watched {
    std::string op;
    Event completed;
    Deadline deadline;
  };
  void work();
  // Forgets what has completed; sets the failure where something is wrong, and lets streams go.
  // REQUIRE the lock.
  void look();
  std::optional<Failure> find_failure();
  void forget_completed();

  const int rank_;
  const std::chrono::milliseconds timeout_;
  const std::function<std::string()> find_loss_;
  const std::function<void()> let_go_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Watched> watched_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_{false};  // after failure_ was set; read without the lock
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace lockstep::comm
