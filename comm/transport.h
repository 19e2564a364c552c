#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/comm/collective.h"
#include "lockstep/comm/costs.h"
#include "lockstep/comm/pair_streams.h"
#include "lockstep/comm/socket.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/memory.h"

namespace lockstep::comm {

// A failure as plain data. An Error is made anew each time it is thrown, so that threads share no
// exception object.
struct Failure {
  ErrorCode code = ErrorCode::kInternal;
  std::string op;
  std::string message;

  // Of the exception in flight. Call it in a catch block.
  static Failure current(std::string_view op);
  [[noreturn]] void raise() const;
};

// Throws what a rank's leaving means to another, which needed it in `op`: the leaver's own error
// where that is about a third rank or about all, and otherwise that the leaver is lost.
[[noreturn]] void raise_departure(ErrorCode code, std::string_view op, int rank,
                                  std::string_view reason);

// The error of a rank that has waited long enough for others.
Error timed_out(std::string_view op, int rank, std::chrono::milliseconds waited,
                std::span<const int> missing);

// What moves the bytes of one group. Collectives are run by one thread at a time, in order, each
// after the one before it.
class Transport {
 public:
  Transport(int rank, int size, std::chrono::milliseconds timeout)
      : rank_(rank), size_(size), timeout_(timeout) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // How long to wait for other ranks in this. In a split they may themselves wait for others, all
  // of the timeout, to make their groups: what they then say must not come too late.
  std::chrono::milliseconds patience(const Request& request) const {
    return request.kind == Kind::kSplit ? 2 * timeout_ : timeout_;
  }

  virtual std::string_view name() const = 0;
  // Returns once this rank's part is done: nobody reads or writes its buffers any more. Throws
  // what Communicator promises; kCancelled once cancel() was called.
  virtual void run(const Collective& collective) = 0;
  // Goes on with transfers to and from single ranks until one of them is done, or nudge() was
  // called. Throws as run() does.
  virtual void run(std::span<Transfer* const> transfers) = 0;
  // How every collective begins, and no more: waits until all ranks ask for the same, and puts what
  // each has to tell into `all`, by rank: `bytes` of every rank, at most 64 KiB. For a transport
  // that goes on by itself, over other memory. Throws as run() does.
  virtual void meet(const Collective& collective, const void* mine, size_t bytes, void* all) = 0;
  // From any thread: there are more transfers now.
  virtual void nudge() noexcept = 0;
  virtual std::shared_ptr<void> allocate(size_t bytes) = 0;
  // The device whose memory buffers may lie in besides the CPU's, and memory there that is reduced
  // without copies. kCpu: there is none.
  virtual Device device() const { return kCpu; }
  virtual std::shared_ptr<void> allocate_on_device(size_t bytes) {
    return lockstep::allocate(bytes, device());
  }

  // What the cost model needs to know, measured by all ranks together, each at the same place in
  // its sequence of run() calls; `rounds` is how often (costs.h).
  virtual Costs measure_costs(int rounds) = 0;
  // By which it chooses algorithms from now on: the same on every rank.
  void set_costs(const Costs& costs) { costs_ = costs; }
  const Costs& costs() const { return costs_; }
  // For people: how this rank reaches `peer`, and the algorithm of an all_reduce of `bytes` bytes.
  virtual std::string pair_text(int peer) const = 0;
  virtual std::string way_text(size_t bytes) const = 0;

  // Tells the other ranks that this one will take no part in anything more, and why; they have it
  // as an error when they next need this rank. After the last run(), or the one that failed.
  // Returns once nobody touches this rank's buffers.
  virtual void leave(const Failure& why) noexcept = 0;
  // From any thread: a rank that is known to have died without leaving; -1 where none is.
  virtual int find_dead() = 0;
  // From any thread: ends a run() under way, and every later one, with kCancelled.
  virtual void cancel() noexcept = 0;

 private:
  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  Costs costs_;
};

}  // namespace lockstep::comm
