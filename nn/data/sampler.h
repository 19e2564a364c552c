#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::nn {

// Says which samples of a dataset an epoch reads, and in what order.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // How many samples an epoch has here; the same for every epoch.
  virtual int64_t size() const = 0;

  // The samples of the epoch that set_epoch() named, size() of them. Depends on the constructor's
  // arguments and the epoch alone, so that an interrupted epoch can be taken up again.
  virtual std::vector<int64_t> indices() const = 0;

  // A DataLoader sets this itself. Throws Error(kInvalidArgument) for a negative epoch.
  void set_epoch(int64_t epoch);
  int64_t epoch() const { return epoch_; }

 private:
  int64_t epoch_ = 0;
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
// same samples for every world size with the same global batch.
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

 private:
  int64_t size_;
  int64_t world_size_;
  int64_t rank_;
  DistributedSamplerOptions options_;
};

}  // namespace lockstep::nn
