#include "lockstep/nn/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
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

void check_rank(int rank, int world_size, std::string_view op) {
  check(world_size > 0 && rank >= 0 && rank < world_size, op, [&] {
    return str_cat("want a rank in [0, world_size), got rank ", rank, " of ", world_size);
  });
}

// How many of `size` places each rank has.
int64_t share_size(int64_t size, int64_t world_size, bool drop_last) {
  const bool rest = size % world_size != 0;
  return size / world_size + (rest && !drop_last ? 1 : 0);
}

// The places rank, rank + world_size, … of an order. Past its end its first places follow again,
// round and round.
std::vector<int64_t> share_of(const std::vector<int64_t>& order, int64_t world_size, int64_t rank,
                              bool drop_last) {
  const auto size = static_cast<int64_t>(order.size());
  std::vector<int64_t> mine(static_cast<size_t>(share_size(size, world_size, drop_last)));
  for (size_t i = 0; i < mine.size(); ++i) {
    const int64_t place = rank + static_cast<int64_t>(i) * world_size;
    mine[i] = order[static_cast<size_t>(place % size)];
  }
  return mine;
}

std::vector<double> uniform_numbers(int64_t count, uint64_t seed, int64_t epoch) {
  Generator generator{.seed = seed + static_cast<uint64_t>(epoch)};
  return rand({count}, {DType::kF64}, &generator).to_vector<double>();
}

std::vector<int64_t> draw_with_replacement(const std::vector<double>& weights,
                                           const std::vector<double>& numbers) {
  // Scaled, so that the sum of large weights is finite.
  const double greatest = *std::max_element(weights.begin(), weights.end());
  std::vector<double> ends;
  double total = 0;
  size_t last = 0;  // with a weight
  for (size_t i = 0; i < weights.size(); ++i) {
    total += weights[i] / greatest;
    ends.push_back(total);
    if (weights[i] > 0) last = i;
  }
  std::vector<int64_t> drawn;
  for (const double number : numbers) {
    const auto end = std::upper_bound(ends.begin(), ends.end(), number * total);
    drawn.push_back(std::min(end - ends.begin(), static_cast<ptrdiff_t>(last)));
  }
  return drawn;
}

std::vector<int64_t> draw_without_replacement(const std::vector<double>& weights,
                                              const std::vector<double>& numbers, int64_t count) {
  std::vector<std::pair<double, int64_t>> keys;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    // 1 - u is above 0. Logarithms, because the quotient of small weights is not finite.
    keys.emplace_back(std::log(-std::log1p(-numbers[i])) - std::log(weights[i]),
                      static_cast<int64_t>(i));
  }
  std::partial_sort(keys.begin(), keys.begin() + count, keys.end());
  std::vector<int64_t> drawn;
  for (int64_t i = 0; i < count; ++i) drawn.push_back(keys[static_cast<size_t>(i)].second);
  return drawn;
}

}  // namespace

void Sampler::resume(const State& state) {
  check(state.epoch >= 0 && state.samples_done >= 0 &&
            (state.samples_done == 0 || state.samples_done <= size()),
        "sampler", [&] {
          return str_cat("want an epoch from 0 and a place in [0, ", size(),
                         "], the samples of an epoch, got epoch ", state.epoch, " and ",
                         state.samples_done);
        });
  state_ = state;
  order_.clear();
  has_order_ = false;
  ended_ = false;
  was_given_ = false;
}

std::optional<int64_t> Sampler::next() {
  if (ended_) {
    state_.samples_done = 0;
    has_order_ = false;
    ended_ = false;
  }
  if (!has_order_) {
    order_ = indices();
    has_order_ = true;
  }
  const auto place = static_cast<size_t>(state_.samples_done);
  if (place >= order_.size()) {
    ended_ = true;
    return std::nullopt;
  }
  ++state_.samples_done;
  return order_[place];
}

void Sampler::warn_if_repeated(std::string_view name) const {
  if (was_given_ && !has_warned_ && size() > 0) {
    has_warned_ = true;
    const std::string text =
        str_cat("lockstep: warning: ", name, " gives the order of epoch ", state_.epoch,
                " a second time; call set_epoch(epoch) before each epoch, or all of them read the "
                "samples in the same order\n");
    std::fputs(text.c_str(), stderr);
  }
  was_given_ = true;
}

SequentialSampler::SequentialSampler(int64_t size) : size_(size) {
  check_size(size, "sequential_sampler");
}

std::vector<int64_t> SequentialSampler::indices() const { return in_order(size_); }

SubsetSampler::SubsetSampler(std::vector<int64_t> indices) : indices_(std::move(indices)) {}

RandomSampler::RandomSampler(int64_t size, uint64_t seed) : size_(size), seed_(seed) {
  check_size(size, "random_sampler");
}

std::vector<int64_t> RandomSampler::indices() const {
  warn_if_repeated("RandomSampler");
  return shuffled(size_, seed_, epoch());
}

DistributedSampler::DistributedSampler(int64_t size, int world_size, int rank,
                                       const DistributedSamplerOptions& options)
    : size_(size), world_size_(world_size), rank_(rank), options_(options) {
  check_size(size, "distributed_sampler");
  check_rank(rank, world_size, "distributed_sampler");
}

int64_t DistributedSampler::size() const {
  return share_size(size_, world_size_, options_.drop_last);
}

std::vector<int64_t> DistributedSampler::indices() const {
  if (options_.shuffle) warn_if_repeated("DistributedSampler");
  return share_of(options_.shuffle ? shuffled(size_, options_.seed, epoch()) : in_order(size_),
                  world_size_, rank_, options_.drop_last);
}

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, int64_t num_samples,
                                             const WeightedRandomSamplerOptions& options)
    : weights_(std::move(weights)), num_samples_(num_samples), options_(options) {
  constexpr const char* kOp = "weighted_random_sampler";
  check_size(num_samples, kOp);
  check_rank(options.rank, options.world_size, kOp);
  int64_t positive = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    check(weights_[i] >= 0 && std::isfinite(weights_[i]), kOp, [&] {
      return str_cat("want finite weights of 0 and more, got ", weights_[i], " for sample ", i);
    });
    if (weights_[i] > 0) ++positive;
  }
  check(num_samples == 0 || positive > 0, kOp, [&] {
    return str_cat("want a weight above 0 to draw ", num_samples, " samples from, got none among ",
                   weights_.size());
  });
  check(options.replacement || num_samples <= positive, kOp, [&] {
    return str_cat("want at most as many samples as there are weights above 0, ", positive,
                   ", when drawing without replacement, got ", num_samples);
  });
}

int64_t WeightedRandomSampler::size() const {
  return share_size(num_samples_, options_.world_size, options_.drop_last);
}

std::vector<int64_t> WeightedRandomSampler::indices() const {
  if (num_samples_ == 0) return {};
  warn_if_repeated("WeightedRandomSampler");
  const auto numbers = [&](int64_t count) {
    return uniform_numbers(count, options_.seed, epoch());
  };
  const std::vector<int64_t> order =
      options_.replacement
          ? draw_with_replacement(weights_, numbers(num_samples_))
          : draw_without_replacement(weights_, numbers(static_cast<int64_t>(weights_.size())),
                                     num_samples_);
  return share_of(order, options_.world_size, options_.rank, options_.drop_last);
}

}  // namespace lockstep::nn
