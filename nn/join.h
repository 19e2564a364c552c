#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/nn/data/dataset.h"
#include "lockstep/nn/data_parallel.h"

namespace lockstep::nn {

struct JoinOptions {
  // What the sum of gradients is divided by.
  enum class Divisor {
    kWorldSize,  // the number of ranks, also of those without a batch: every batch weighs the same
    kActive,     // the number of ranks that have a batch in this step
  };
  Divisor divisor = Divisor::kWorldSize;
  // Where a rank runs out of batches before others do, every rank throws instead.
  bool throw_on_early_end = false;
};

// Trains on uneven inputs: as long as any rank has a batch, all ranks run the step.
//
//   Join join(model);
//   Batch batch;
//   while (join.next(loader, batch)) {
//     optimizer.zero_grad();
//     cross_entropy(model(batch.input), batch.target).backward();
//     optimizer.step();
//   }
//
// A rank whose own batches have ended gets batches of zero samples. It runs the whole step, the
// optimiser's part too, and so takes part in everything that is collective in it, in the same
// order: buffers, SyncBatchNorm, buckets, hooks, and collectives of the program's own. What its
// backward computes counts as zeros, whatever the loss is. So replicas stay equal, and with them
// optimisers, schedules and averages. Buffers come from a rank that has a batch. When all batches
// have ended, every rank gets the parameters and buffers of a rank that was active last.
//
// A gradient's mean over samples, where batches are of different sizes: mean_over_samples().
//
// One object is one epoch. While it lives, a wrapped model that has not joined refuses to run a
// forward in training mode in this thread. The models must outlive it. Used from one thread.
class Join {
 public:
  // Throws Error(kInvalidArgument) for no model or a null one, for models whose groups have other
  // ranks, and where another Join is open in this thread.
  explicit Join(std::vector<DataParallel*> models, const JoinOptions& options = {});
  explicit Join(DataParallel& model, const JoinOptions& options = {})
      : Join(std::vector<DataParallel*>{&model}, options) {}
  // Local: models are as before. A rank that leaves early, by a break or an error, is missed by the
  // others in their next step.
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Collective, at the start of every step. True while any rank has a batch: `batch` is what
  // source.next() gave (a DataLoader's, say: an std::optional<Batch>), or zero samples in the
  // shapes and dtypes of a batch once that was nullopt.
  //
  // Throws Error(kMismatch) on every rank, naming ranks, where they opened their Joins with other
  // options or other numbers of models, or where one ended early and options forbid it.
  template <class Source>
  bool next(Source& source, Batch& batch) {
    std::optional<Batch> own;
    if (!ran_out_) own = source.next();
    ran_out_ = !own.has_value();
    return take(std::move(own), batch);
  }
  // The same for batches of any other kind, of which this rank has one of `samples` samples, or
  // none. Without one it runs the step with any batch that its model can take; where there are
  // SyncBatchNorms, with one of zero samples.
  bool next(bool has_batch, int64_t samples = 1);

  // Of the step that next() began. This rank has no batch of its own:
  bool is_shadow() const { return is_shadow_; }
  // Ranks that have one:
  int active_ranks() const { return active_; }
  // Steps that were begun.
  int64_t steps() const { return steps_; }

  // `loss`, the mean over this rank's batch, with the weight that makes the average of gradients,
  // by either divisor, that of the mean over the samples of all ranks: n / N of the divisor. On a
  // rank without samples the value is 0. Not collective: next() has told the numbers.
  Tensor mean_over_samples(const Tensor& loss) const;

  // Throws Error(kInvalidArgument) where a Join is open in this thread which `model` is no part of.
  static void check_joined(const DataParallel& model);

 private:
  // What each rank tells the others.
  struct Report {
    int64_t has_batch = 0;
    int64_t samples = 0;
    int64_t wants_shapes = 0;
    int64_t divisor = 0;
    int64_t throws = 0;
    int64_t models = 0;
  };
  bool begin_step(Report mine);
  bool take(std::optional<Batch> own, Batch& batch);
  std::vector<Report> gather(const Report& mine) const;
  void share_shapes(int source);
  void set_shares(const Reducer::Share& share) const;
  void finish();

  std::vector<DataParallel*> models_;
  JoinOptions options_;
  bool ran_out_ = false;
  bool is_shadow_ = false;
  bool finished_ = false;
  int active_ = 0;
  int source_ = -1;  // the lowest rank that was active in the last step
  int64_t steps_ = 0;
  double weight_ = 1;
  std::optional<Batch> empty_;  // zero samples
};

}  // namespace lockstep::nn
