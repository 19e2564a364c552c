#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/nn/data/dataset.h"

namespace lockstep::nn {

// Makes batches number `first`, first + 1, … below `count` ahead of their use, in threads, and
// hands them out in order. Library-internal; DataLoader has one for each epoch.
class Prefetcher {
 public:
  // Called with the number of a batch, from any thread; `make` must be callable from several at a
  // time. With no workers, take() calls it.
  using Make = std::function<Batch(int64_t number)>;

  Prefetcher(Make make, int64_t first, int64_t count, int workers, int64_t prefetch);
  // Ends the workers once the batches they are making are made.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The next batch; nullopt after the last. Throws what `make` threw for it. From one thread.
  std::optional<Batch> take();

 private:
  struct Slot {
    bool ready = false;
    Batch batch;
    std::exception_ptr error;
  };

  void work();
  void stop();
  Slot& slot(int64_t number) { return slots_[static_cast<size_t>(number) % slots_.size()]; }

  const Make make_;
  const int64_t count_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable made_;
  std::condition_variable room_;
  std::vector<Slot> slots_;  // batch n waits in slot n % size
  int64_t claimed_;          // the next number that a worker takes on
  int64_t taken_;            // the next number that take() returns
  bool stopping_ = false;

  std::vector<std::thread> workers_;
};

}  // namespace lockstep::nn
