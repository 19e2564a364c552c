#include "lockstep/nn/data/sampler.h"

#include <numeric>
#include <utility>

#include "lockstep/core/random.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

void check_size(int64_t size, std::string_view op) {
  check(size >= 0, op, [&] { return str_cat("want a number of samples, got ", size); });
}

std::vector<int64_t> in_order(int64_t size) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

std::vector<int64_t> shuffled(int64_t size, uint64_t seed, int64_t epoch) {
  if (size == 0) return {};
  Generator generator{.seed = seed + static_cast<uint64_t>(epoch)};
  return randperm(size, &generator).to_vector<int64_t>();
}

}  // namespace

void Sampler::set_epoch(int64_t epoch) {
  check(epoch >= 0, "sampler", [&] { return str_cat("want an epoch from 0, got ", epoch); });
  epoch_ = epoch;
}

SequentialSampler::SequentialSampler(int64_t size) : size_(size) {
  check_size(size, "sequential_sampler");
}

std::vector<int64_t> SequentialSampler::indices() const { return in_order(size_); }

SubsetSampler::SubsetSampler(std::vector<int64_t> indices) : indices_(std::move(indices)) {}

RandomSampler::RandomSampler(int64_t size, uint64_t seed) : size_(size), seed_(seed) {
  check_size(size, "random_sampler");
}

std::vector<int64_t> RandomSampler::indices() const { return shuffled(size_, seed_, epoch()); }

DistributedSampler::DistributedSampler(int64_t size, int world_size, int rank,
                                       const DistributedSamplerOptions& options)
    : size_(size), world_size_(world_size), rank_(rank), options_(options) {
  check_size(size, "distributed_sampler");
  check(world_size > 0 && rank >= 0 && rank < world_size, "distributed_sampler", [&] {
    return str_cat("want a rank in [0, world_size), got rank ", rank, " of ", world_size);
  });
}

int64_t DistributedSampler::size() const {
  const bool rest = size_ % world_size_ != 0;
  return size_ / world_size_ + (rest && !options_.drop_last ? 1 : 0);
}

std::vector<int64_t> DistributedSampler::indices() const {
  const std::vector<int64_t> order =
      options_.shuffle ? shuffled(size_, options_.seed, epoch()) : in_order(size_);
  std::vector<int64_t> mine(static_cast<size_t>(size()));
  for (size_t i = 0; i < mine.size(); ++i) {
    // Past the end of the order its first places follow again, round and round.
    const int64_t place = rank_ + static_cast<int64_t>(i) * world_size_;
    mine[i] = order[static_cast<size_t>(place % size_)];
  }
  return mine;
}

}  // namespace lockstep::nn
