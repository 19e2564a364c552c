#include "lockstep/nn/data/data_loader.h"

#include <algorithm>
#include <exception>
#include <new>
#include <span>
#include <utility>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/core/random.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/data/prefetcher.h"

namespace lockstep::nn {
namespace {

constexpr const char* kOp = "data_loader";

// Gives this thread's default generator a stream of its own for one batch, so that a dataset's
// random numbers depend on the batch and not on the thread that makes it.
class BatchGenerator {
 public:
  explicit BatchGenerator(uint64_t stream) : before_(default_generator()) {
    default_generator() = Generator{.seed = stream};
  }
  ~BatchGenerator() { default_generator() = before_; }
  BatchGenerator(const BatchGenerator&) = delete;
  BatchGenerator& operator=(const BatchGenerator&) = delete;

 private:
  Generator before_;
};

// The finaliser of splitmix64 (Steele, Lea and Flood, 2014): a bijection that mixes every bit.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// One epoch's work: which samples each batch has, and how it is made. Shared by the workers.
struct EpochPlan {
  std::shared_ptr<const Dataset> dataset;
  std::vector<int64_t> order;
  int64_t epoch = 0;
  int64_t batch_size = 1;
  uint64_t seed = 0;
  bool pin = false;

  Batch make(int64_t number) const {
    const auto begin = static_cast<size_t>(number * batch_size);
    const auto count = std::min(static_cast<size_t>(batch_size), order.size() - begin);
    const std::span<const int64_t> indices(order.data() + begin, count);
    const NoGrad no_grad;
    const BatchGenerator generator(
        mix(mix(seed + static_cast<uint64_t>(epoch)) + static_cast<uint64_t>(indices[0])));
    try {
      Batch batch = dataset->batch(indices);
      if (pin) {
        for (Tensor* part : {&batch.input, &batch.target}) {
          if (part->defined()) *part = pin_memory(*part);
        }
      }
      return batch;
    } catch (const Error& error) {
      std::throw_with_nested(Error(error.code(), kOp, message(number, error.what())));
    } catch (const std::bad_alloc& error) {
      std::throw_with_nested(Error(ErrorCode::kOutOfMemory, kOp, message(number, error.what())));
    } catch (const std::exception& error) {
      std::throw_with_nested(Error(ErrorCode::kIo, kOp, message(number, error.what())));
    }
  }

  std::string message(int64_t number, const char* what) const {
    return str_cat("batch ", number, " of epoch ", epoch, ": ", what);
  }
};

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<Sampler> sampler,
                       const DataLoaderOptions& options)
    : dataset_(std::move(dataset)), sampler_(std::move(sampler)), options_(options) {
  check(dataset_ != nullptr && sampler_ != nullptr, kOp,
        "want a dataset and a sampler, got a null pointer");
  check(options.batch_size > 0 && options.workers >= 0 && options.prefetch > 0, kOp, [&] {
    return str_cat("want batch_size > 0, workers >= 0 and prefetch > 0, got ", options.batch_size,
                   ", ", options.workers, " and ", options.prefetch);
  });
}

DataLoader::~DataLoader() = default;

int64_t DataLoader::size() const {
  const int64_t samples = sampler_->size();
  const bool rest = samples % options_.batch_size != 0;
  return samples / options_.batch_size + (rest && !options_.drop_last ? 1 : 0);
}

void DataLoader::resume(const State& state) {
  check(state.epoch >= 0 && state.batches_done >= 0 && state.batches_done <= size(), kOp, [&] {
    return str_cat("want an epoch from 0 and a place in [0, ", size(),
                   "], the batches of an epoch, got epoch ", state.epoch, " and ",
                   state.batches_done);
  });
  prefetcher_.reset();
  state_ = state;
  placed_ = true;
}

DataLoader::Iterator DataLoader::begin() {
  if (!placed_) set_epoch(state_.epoch + 1);
  return Iterator(this);
}

std::optional<Batch> DataLoader::next() {
  placed_ = false;
  if (state_.batches_done >= size()) return std::nullopt;
  if (!prefetcher_) open_epoch();
  try {
    std::optional<Batch> batch = prefetcher_->take();
    ++state_.batches_done;
    if (state_.batches_done == size()) prefetcher_.reset();
    return batch;
  } catch (...) {
    prefetcher_.reset();  // its place has moved on, ours has not
    throw;
  }
}

void DataLoader::open_epoch() {
  sampler_->set_epoch(state_.epoch);
  auto plan = std::make_shared<EpochPlan>();
  plan->dataset = dataset_;
  plan->order = sampler_->indices();
  plan->epoch = state_.epoch;
  plan->batch_size = options_.batch_size;
  plan->seed = options_.seed;
  plan->pin = options_.pin_memory;
  check(static_cast<int64_t>(plan->order.size()) == sampler_->size(), kOp, [&] {
    return str_cat("want as many indices from the sampler as its size() says, ", sampler_->size(),
                   ", got ", plan->order.size());
  });
  for (const int64_t index : plan->order) {
    check(index >= 0 && index < dataset_->size(), kOp, [&] {
      return str_cat("the sampler named sample ", index, ", but the dataset has ",
                     dataset_->size());
    });
  }
  prefetcher_ = std::make_unique<Prefetcher>([plan](int64_t number) { return plan->make(number); },
                                             state_.batches_done, size(), options_.workers,
                                             options_.prefetch);
}

}  // namespace lockstep::nn
