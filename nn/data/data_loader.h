#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/nn/data/dataset.h"
#include "lockstep/nn/data/sampler.h"

namespace lockstep::nn {

class Prefetcher;

struct DataLoaderOptions {
  int64_t batch_size = 1;
  // Leave out the end of an epoch that fills no whole batch.
  bool drop_last = false;
  // Threads that make batches ahead of next(); 0 makes each one in next().
  int workers = 0;
  // The most batches that are ready or being made at a time, all workers together.
  int64_t prefetch = 4;
  // Batches lie in page-locked memory, from which a CUDA device copies while the host goes on:
  // batch.to(device) does not wait (see pin_memory()).
  bool pin_memory = false;
  // The random numbers that a dataset draws from default_generator() follow from this, the epoch
  // and the batch's first index.
  uint64_t seed = 0;
};

// Reads a dataset batch by batch in the order of a sampler. One range-for is one epoch:
//
//   DataLoader loader(dataset, sampler, {.batch_size = 128, .workers = 2});
//   for (int epoch = 0; epoch < 3; ++epoch) {
//     for (Batch& batch : loader) { … }
//   }
//
// The batches, their order and their random numbers do not depend on the number of workers. The
// dataset runs with gradients off. Used from one thread. The destructor waits for no more than the
// batches that are being made.
class DataLoader {
 public:
  // A place in the run: how many batches of an epoch were handed out.
  struct State {
    int64_t epoch = 0;
    int64_t batches_done = 0;
    friend bool operator==(const State&, const State&) = default;
  };

  // Throws Error(kInvalidArgument) for null pointers and options out of range.
  DataLoader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<Sampler> sampler,
             const DataLoaderOptions& options = {});
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Batches in an epoch.
  int64_t size() const;

  // The next batch of the epoch, or nullopt at its end, and again until begin(), set_epoch() or
  // resume(). Throws Error(kInvalidArgument) for a sampler's index that the dataset does not have.
  // What the dataset throws comes out here as an Error that names the batch and, as far as the
  // dataset tells, the sample; the place does not move then.
  std::optional<Batch> next();

  State state() const { return state_; }
  // The next batch is number state.batches_done of state.epoch. The batches before it are not
  // read. Throws Error(kInvalidArgument) for a place that no epoch has.
  void resume(const State& state);
  void resume(int64_t batches_done) { resume(State{state_.epoch, batches_done}); }
  // The start of an epoch.
  void set_epoch(int64_t epoch) { resume(State{epoch, 0}); }

  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = ptrdiff_t;

    explicit Iterator(DataLoader* loader) : loader_(loader), batch_(loader->next()) {}
    Batch& operator*() const { return *batch_; }
    Batch* operator->() const { return &*batch_; }
    Iterator& operator++() {
      batch_ = loader_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !batch_.has_value(); }

   private:
    DataLoader* loader_;
    mutable std::optional<Batch> batch_;
  };

  // Starts at the place that the constructor (epoch 0), resume() or set_epoch() set, if nothing was
  // read since; otherwise at the next epoch, also where the last one was left by a break.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  void open_epoch();

  std::shared_ptr<const Dataset> dataset_;
  std::shared_ptr<Sampler> sampler_;
  DataLoaderOptions options_;
  State state_;
  bool placed_ = true;                      // nothing was read since the place was set
  std::unique_ptr<Prefetcher> prefetcher_;  // of the epoch under way; null before its first batch
};

}  // namespace lockstep::nn
