#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep::nn {

// Says which samples of a dataset an epoch reads, and in what order. A DataLoader reads it; those
// who do without one call
//
//   sampler.set_epoch(epoch);
//   while (const auto sample = sampler.next()) { … }
//
// A checkpoint (TrainingState::add) holds the place, in the middle of an epoch too.
//
// Thread safety: none.
class Sampler {
 public:
  // A place in the run: how many samples of an epoch next() has given here.
  struct State {
    int64_t epoch = 0;
    int64_t samples_done = 0;
    friend bool operator==(const State&, const State&) = default;
  };

  virtual ~Sampler() = default;

  // How many samples an epoch has here; the same for every epoch.
  virtual int64_t size() const = 0;

  // The samples of the epoch that set_epoch() named, size() of them. Depends on the constructor's
  // arguments and the epoch alone, so that an interrupted epoch can be taken up again. Samplers
  // with a new order for each epoch warn once, on stderr, where an order is asked for a second time
  // with no set_epoch() or resume() in between: every epoch would be the same.
  virtual std::vector<int64_t> indices() const = 0;

  // How many ranks share an epoch's order, each with every so manyth place.
  virtual int64_t ranks() const { return 1; }

  // The start of an epoch. A DataLoader sets this itself. Throws Error(kInvalidArgument) for a
  // negative epoch.
  void set_epoch(int64_t epoch) { resume({epoch, 0}); }
  int64_t epoch() const { return state_.epoch; }

  // The next sample of the epoch; nullopt once at its end. After that, without set_epoch(), the
  // same epoch begins again.
  std::optional<int64_t> next();

  State state() const { return state_; }
  // next() goes on from this place. Throws Error(kInvalidArgument) for a place that no epoch has.
  void resume(const State& state);

 protected:
  // For indices() of samplers whose order depends on the epoch: the warning above.
  void warn_if_repeated(std::string_view name) const;

 private:
  State state_;
  std::vector<int64_t> order_;  // of this epoch, for next()
  bool has_order_ = false;
  bool ended_ = false;               // next() has said so
  mutable bool was_given_ = false;   // this epoch's order, since its place was set
  mutable bool has_warned_ = false;  // once for each sampler
};

// 0, 1, … size - 1.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(int64_t size);
  int64_t size() const override { return size_; }
  std::vector<int64_t> indices() const override;

 private:
  int64_t size_;
};

// A given list, in its order: part of a dataset, or one rank's share of a test set.
class SubsetSampler : public Sampler {
 public:
  explicit SubsetSampler(std::vector<int64_t> indices);
  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  std::vector<int64_t> indices() const override { return indices_; }

 private:
  std::vector<int64_t> indices_;
};

// A permutation of 0 … size - 1, a new one each epoch, made from seed + epoch.
class RandomSampler : public Sampler {
 public:
  explicit RandomSampler(int64_t size, uint64_t seed = 0);
  int64_t size() const override { return size_; }
  std::vector<int64_t> indices() const override;

 private:
  int64_t size_;
  uint64_t seed_;
};

struct DistributedSamplerOptions {
  bool shuffle = true;  // else in order
  uint64_t seed = 0;    // the same on every rank
  // Where the ranks do not divide the samples: leave out the last few of an epoch's order, so that
  // each rank has floor(N / W); else repeat the first ones, so that each has ceil(N / W).
  bool drop_last = false;
};

// One rank's share of an epoch: of the order that all ranks agree on (RandomSampler's for this seed
// and epoch, or 0, 1, …) those at places rank, rank + W, rank + 2 W, …
//
// Every rank has as many samples as the others, which keeps their numbers of steps equal. Where a
// local batch is B samples, step s of the group reads places [s W B, (s + 1) W B) of the order: the
// same samples for every world size with the same global batch. A checkpoint holds how many places
// of the order the group has read, so that an epoch goes on at another world size; where W does not
// divide them, the last few, fewer than W, are read again.
//
// Averaging gradients over ranks is a mean over samples only while their local batches are equal.
// With y = w x, rank 0's batch {6} and rank 1's {0, 0, 2}, the mean of the ranks' means is
// (6 + 2/3) / 2 = 3.33, but the mean over the samples is 2. Where batches are unequal, multiply
// the loss of a rank with n of all N samples by n W / N; DataParallel does not do it for you.
class DistributedSampler : public Sampler {
 public:
  // Throws Error(kInvalidArgument) unless size >= 0 and 0 <= rank < world_size.
  DistributedSampler(int64_t size, int world_size, int rank,
                     const DistributedSamplerOptions& options = {});
  int64_t size() const override;
  std::vector<int64_t> indices() const override;
  int64_t ranks() const override { return world_size_; }

 private:
  int64_t size_;
  int64_t world_size_;
  int64_t rank_;
  DistributedSamplerOptions options_;
};

struct WeightedRandomSamplerOptions {
  bool replacement = true;  // a sample may come several times in an epoch
  uint64_t seed = 0;        // the same on every rank
  int world_size = 1;       // ranks that share an epoch's draws, as for DistributedSampler
  int rank = 0;
  bool drop_last = false;  // as for DistributedSampler
};

// num_samples draws for each epoch of all ranks together, made from seed + epoch: sample i comes
// with a probability in proportion to weights[i], which need not add up to 1; never, where that is
// 0. Without replacement each draw is from those that are left (Efraimidis and Spirakis, "Weighted
// random sampling with a reservoir", 2006: the order of -log(u) / weight).
class WeightedRandomSampler : public Sampler {
 public:
  // Throws Error(kInvalidArgument), with the place, for a weight that is negative or not finite;
  // where there are draws to make and no weight is above 0, or, without replacement, fewer weights
  // above 0 than draws; and as DistributedSampler does.
  WeightedRandomSampler(std::vector<double> weights, int64_t num_samples,
                        const WeightedRandomSamplerOptions& options = {});
  int64_t size() const override;
  std::vector<int64_t> indices() const override;
  int64_t ranks() const override { return options_.world_size; }

 private:
  std::vector<double> weights_;
  int64_t num_samples_;
  WeightedRandomSamplerOptions options_;
};

}  // namespace lockstep::nn
