#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/tensor.h"
#include "lockstep/kernels/error.h"
#include "lockstep/nn/comm_hook.h"
#include "lockstep/nn/fingerprint.h"

namespace lockstep::nn {

struct ReducerOptions {
  // A bucket takes gradients until its bytes reach the cap. The first is small, so that the
  // reduction starts early in backward.
  int64_t first_bucket_bytes = int64_t{1} << 20;
  int64_t bucket_bytes = int64_t{25} << 20;
};

// Averages the gradients of parameters over a group while backward goes on (Li et al., "PyTorch
// Distributed", VLDB 2020, section 3.2.3).
//
// Gradients live in buckets, and a bucket is reduced as soon as backward has filled it; buckets go
// out in the same order on every rank: that in which rank 0's first backward completed gradients,
// for which the first one waits until its end. Any backward that reaches a parameter is averaged,
// whichever forward made its graph. At its end the ranks agree on which gradients there are: one
// that no rank has stays null, one that only some have is averaged with zeros for the rest.
//
// A backward() inside of a backward (gradient checkpointing) may reach a parameter several times.
// What comes after its bucket has gone out is averaged on its own at the end; from then on the
// bucket waits for as many gradients as there were. Between the two grad() is null, so that nothing
// is added to memory that is being reduced.
//
// Used from one thread. It must outlive every backward that reaches its parameters.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // Collective. REQUIRES equal values on every rank. `parameters` are leaves that require a
  // gradient, in the same order on every rank. Reduces in a duplicate of `group`, so that its order
  // and that of the caller's collectives (SyncBatchNorm's, say) do not depend on each other; where
  // a backward fails both are aborted.
  Reducer(NamedTensors parameters, std::shared_ptr<comm::Communicator> group,
          const ReducerOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // The backward that is running in this thread ends with a reduction, even if it reaches none of
  // the parameters. No-op outside of backward() and while not synchronising.
  void arm();

  // While false, gradients accumulate on this rank; the next synchronised backward averages the
  // sum. Set in the same way on every rank: that backward ends in Error(kMismatch) on every rank
  // where they accumulated in different numbers of backwards.
  void set_synchronise(bool synchronise) { synchronise_ = synchronise; }
  bool synchronise() const { return synchronise_; }

  // How buckets are averaged from the next backward on; null: by all_reduce. Every rank sets one of
  // the same kind.
  void set_comm_hook(std::shared_ptr<CommHook> hook);

  // This rank's part in averages while some ranks have no batch of their own (Join).
  struct Share {
    bool discard = false;  // what backward computes here counts as zeros
    double scale = 1;      // averages are multiplied by it; the same on every rank
    int source = 0;        // the rank whose buffers all get; likewise
  };
  void set_share(const Share& share);
  const Share& share() const { return share_; }

  // The mode of the newest forward, for what is said where ranks disagree.
  void note_forward(bool training) { forward_mode_ = training ? "training" : "eval"; }

  // The duplicate of the group, which is for this model alone.
  comm::Communicator& group() { return *group_; }

  bool manages(const Tensor& parameter) const;

  // The parameters whose gradients lie in each bucket, one behind the other. Changes once, in the
  // first backward.
  std::vector<std::vector<Tensor>> bucket_parameters() const;
  // The number of elements in each bucket, in the order in which they go out.
  std::vector<int64_t> bucket_sizes() const;

 private:
  // A parameter and its place in a bucket.
  struct Slot {
    std::string name;
    Tensor parameter;
    int64_t hook = 0;
    std::optional<int64_t> discard_hook;
    size_t bucket = 0;
    Tensor view;           // the parameter's part of its bucket, in the parameter's shape
    size_t bytes = 0;      // of the view
    int expected = 1;      // gradients in one backward
    int arrived = 0;       // in this backward
    bool dirty = false;    // accumulated since the last reduction
    bool ready = false;    // in its bucket during this backward
    bool hidden = false;   // its bucket went out: grad() is null, or what came later
    bool present = false;  // there was a gradient when its bucket went out
    Tensor before;         // the gradient to restore if no rank is dirty
    Tensor recorded;       // a gradient that has a graph (create_graph)
  };
  struct Bucket {
    GradBucket grad;  // its data is flat, in memory that the transport reduces in place
    std::vector<size_t> slots;
    size_t missing = 0;
    comm::Work work;
    std::shared_ptr<CommHook> hook;  // that started it
  };

  void on_accumulated(size_t slot);
  void count_local();
  void place(Slot& slot);
  // Lets grad() name the parameter's place in its bucket.
  static void show(Slot& slot);
  void launch_complete_buckets();
  void launch(Bucket& bucket);
  void complete(Bucket& bucket);
  void finish();
  // Collective: for each slot whether no rank is dirty (0), some are (1), or some have a gradient
  // that missed its bucket (2). Checks for drift where versions differ.
  const std::vector<int64_t>& agree();
  void add_late(Slot& slot);
  [[noreturn]] void rethrow_explained(const Error& error) const;
  int64_t version_sum() const;
  void lay_out(const std::vector<size_t>& order);
  void adopt_first_order();
  void reset() noexcept;
  void give_up() noexcept;

  std::shared_ptr<comm::Communicator> parent_;
  std::shared_ptr<comm::Communicator> group_;  // its duplicate
  ReducerOptions options_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::shared_ptr<CommHook> hook_;
  std::vector<int64_t> votes_;
  size_t next_bucket_ = 0;  // buckets before it were launched in this backward
  bool armed_ = false;
  bool counting_ = false;        // in a backward that is not synchronised
  int64_t local_backwards_ = 0;  // such backwards since the last one that was
  bool synchronise_ = true;
  Share share_;
  const char* forward_mode_ = nullptr;  // "training" or "eval"
  std::vector<size_t> first_order_;     // slots as the first backward completed them
  bool order_adopted_ = false;
  int64_t version_base_ = 0;
};

}  // namespace lockstep::nn
