#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/reducer.h"

namespace lockstep::nn {

struct DataParallelOptions {
  ReducerOptions reducer;
  // Before each forward in training mode every rank gets rank 0's buffers.
  bool broadcast_buffers = true;
  // Compare all parameters bit by bit before every so many forwards in training mode; 0: never.
  int64_t check_every = 0;
};

// Keeps the replicas of a module in lockstep: one replica on each rank of a group, each fed its own
// part of the batch, with their gradients averaged in every backward (see Reducer).
//
//   auto model = std::make_shared<DataParallel>(net, comm::init());
//   cross_entropy(model->forward(x), y).backward();   // net's gradients are the group's average
//
// Each rank's gradient weighs the same. With a loss that is a mean over unequal local batches the
// result is the mean of the ranks' means; for the mean over all N samples multiply the loss of n
// samples by n * world_size / N.
//
// Names stay those of the module: wrapping adds no prefix. Used from one thread.
class DataParallel : public Module {
 public:
  // Collective. Throws Error(kMismatch) on every rank, naming the first difference, unless every
  // rank has the same names, shapes and dtypes; then every rank gets rank 0's parameters and
  // buffers. Throws Error(kInvalidArgument) if no parameter requires a gradient.
  DataParallel(std::shared_ptr<Module> module, std::shared_ptr<comm::Communicator> group,
               DataParallelOptions options = {});

  // The module's forward. Throws Error(kInvalidArgument) that names a parameter that was replaced,
  // added, removed or unfrozen since wrapping.
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override { return "DataParallel"; }

  // While the returned object lives, backward leaves gradients on this rank; the first backward
  // after that averages what has accumulated. What counts is where backward runs, not forward.
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<Reducer> reducer);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<Reducer> reducer_;
    bool before_ = true;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(reducer_); }

  // Collective. Throws Error(kMismatch) on every rank where parameters or buffers differ in any
  // bit, naming the first one and the ranks.
  void check_in_lockstep() const;

  const std::shared_ptr<Module>& module() const { return module_; }
  const std::shared_ptr<comm::Communicator>& group() const { return group_; }
  // Null in a group of one.
  const std::shared_ptr<Reducer>& reducer() const { return reducer_; }

 private:
  void check_parameters() const;
  void broadcast_buffers() const;

  std::shared_ptr<Module> module_;
  std::shared_ptr<comm::Communicator> group_;
  DataParallelOptions options_;
  std::shared_ptr<Reducer> reducer_;
  NamedTensors wrapped_;  // the parameters as they were when wrapped
  int64_t forwards_ = 0;
};

}  // namespace lockstep::nn
