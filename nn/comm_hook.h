#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/tensor.h"

namespace lockstep::nn {

// Gradients that are averaged together.
struct GradBucket {
  size_t index = 0;      // in the order in which buckets go out
  bool is_last = false;  // of a backward
  // All gradients of the bucket behind each other, one dimension. What start() finds is this rank's
  // own sum; what finish() leaves is the average over the group, the same bits on every rank.
  Tensor data;
  // The same with room behind it, zeros, for as many blocks as there are ranks, of one size: those
  // of an all_reduce of data (comm::Blocks), so that a reduce_scatter in place gives its bits.
  Tensor padded;
  // Gradients were added to what a synchronised backward had left.
  bool carried = false;
  std::vector<Tensor> gradients;   // views of data, in the shapes of their parameters
  std::vector<std::string> names;  // of the parameters, likewise
};

// How DataParallel averages a bucket: the place for compression, or for an algorithm of your own.
//
//   model.set_comm_hook(std::make_shared<CastHook>(DType::kBF16));
//
// Buckets are started in order while backward goes on, each as soon as it is full, and finished in
// order at backward's end; on every rank alike, so that both may call collectives of `group`. A
// gradient that missed its bucket (see Reducer) goes around the hook.
//
// Used from the thread that runs backward. What start() or finish() throws comes out of backward(),
// and the group is aborted.
class CommHook {
 public:
  virtual ~CommHook() = default;
  virtual void start(GradBucket& bucket, comm::Communicator& group) = 0;
  virtual void finish(GradBucket& bucket, comm::Communicator& group) = 0;
  // False where finish() leaves averages in this rank's block of the bucket alone; then gradients
  // that have a graph (create_graph) are refused.
  virtual bool leaves_all() const { return true; }
};

}  // namespace lockstep::nn
