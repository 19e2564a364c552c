#include "lockstep/nn/data/data_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stdexcept>

#include "lockstep/core/autograd.h"
#include "lockstep/core/random.h"

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Sample i is i, with a random number as target. One sample may be broken.
class Numbers : public Dataset {
 public:
  explicit Numbers(int64_t size, int64_t broken = -1) : size_(size), broken_(broken) {}
  int64_t size() const override { return size_; }
  Example get(int64_t index) const override {
    check_index(index, "numbers");
    ++reads;
    if (index == broken_) throw std::runtime_error("broken sample");
    if (grad_enabled()) throw std::runtime_error("a dataset ran with gradients on");
    return {Tensor::from<int64_t>({index}, {1}).reshape({}), rand({})};
  }

  mutable std::atomic<int64_t> reads{0};

 private:
  int64_t size_;
  int64_t broken_;
};

struct Seen {
  std::vector<std::vector<int64_t>> batches;
  std::vector<float> random;
  friend bool operator==(const Seen&, const Seen&) = default;
};

void see(Seen& seen, const Batch& batch) {
  seen.batches.push_back(batch.input.to_vector<int64_t>());
  const std::vector<float> random = batch.target.to_vector<float>();
  seen.random.insert(seen.random.end(), random.begin(), random.end());
}

Seen read_epoch(DataLoader& loader) {
  Seen seen;
  for (const Batch& batch : loader) see(seen, batch);
  return seen;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class WithWorkers : public ::testing::TestWithParam<int> {
 protected:
  DataLoaderOptions options(int64_t batch_size, bool drop_last = false) const {
    return {.batch_size = batch_size,
            .drop_last = drop_last,
            .workers = GetParam(),
            .prefetch = 3,
            .seed = 7};
  }
};
INSTANTIATE_TEST_SUITE_P(DataLoader, WithWorkers, ::testing::Values(0, 1, 2, 5));

TEST_P(WithWorkers, ReadsInTheSamplersOrder) {
  DataLoader loader(std::make_shared<Numbers>(7), std::make_shared<SequentialSampler>(7),
                    options(3));
  EXPECT_EQ(loader.size(), 3);
  EXPECT_THAT(read_epoch(loader).batches,
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5), ElementsAre(6)));
}

TEST_P(WithWorkers, DropsTheLastOnRequest) {
  DataLoader loader(std::make_shared<Numbers>(7), std::make_shared<SequentialSampler>(7),
                    options(3, true));
  EXPECT_EQ(loader.size(), 2);
  EXPECT_THAT(read_epoch(loader).batches, ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
}

TEST_P(WithWorkers, GivesTheSameBatchesAndRandomNumbersAsWithoutWorkers) {
  const auto dataset = std::make_shared<Numbers>(101);
  DataLoader loader(dataset, std::make_shared<RandomSampler>(101, 5), options(4));
  DataLoader plain(dataset, std::make_shared<RandomSampler>(101, 5), {.batch_size = 4, .seed = 7});
  Seen first;
  for (int epoch = 0; epoch < 3; ++epoch) {
    const Seen seen = read_epoch(loader);
    EXPECT_EQ(seen, read_epoch(plain)) << "epoch " << epoch;
    if (epoch == 0) {
      first = seen;
    } else {
      EXPECT_NE(seen.batches, first.batches);
      EXPECT_NE(seen.random, first.random);
    }
  }
}

TEST_P(WithWorkers, LeavesTheCallersRandomNumbersAlone) {
  manual_seed(3);
  const std::vector<float> want = rand({4}).to_vector<float>();
  manual_seed(3);
  DataLoader loader(std::make_shared<Numbers>(9), std::make_shared<SequentialSampler>(9),
                    options(2));
  read_epoch(loader);
  EXPECT_EQ(rand({4}).to_vector<float>(), want);
}

TEST_P(WithWorkers, GoesOnFromAnyPlaceWithTheSameBits) {
  const auto dataset = std::make_shared<Numbers>(23);
  const auto make = [&] {
    return std::make_unique<DataLoader>(dataset, std::make_shared<RandomSampler>(23, 1),
                                        options(4));
  };
  const auto whole = make();
  read_epoch(*whole);
  const Seen second = read_epoch(*whole);
  for (int64_t done = 0; done <= whole->size(); ++done) {
    const auto interrupted = make();
    interrupted->set_epoch(1);
    Seen seen;
    for (int64_t i = 0; i < done; ++i) see(seen, *interrupted->next());
    const DataLoader::State state = interrupted->state();
    EXPECT_EQ(state, (DataLoader::State{1, done}));

    const auto resumed = make();
    resumed->resume(state);
    for (const Batch& batch : *resumed) see(seen, batch);
    EXPECT_EQ(seen, second) << "after " << done << " batches";
    EXPECT_EQ(resumed->state(), (DataLoader::State{1, resumed->size()}));
  }
}

TEST_P(WithWorkers, DoesNotReadWhatResumeSkips) {
  const auto dataset = std::make_shared<Numbers>(20);
  DataLoader loader(dataset, std::make_shared<SequentialSampler>(20), options(5));
  loader.resume(3);
  EXPECT_THAT(read_epoch(loader).batches, ElementsAre(ElementsAre(15, 16, 17, 18, 19)));
  EXPECT_EQ(dataset->reads, 5);
}

TEST_P(WithWorkers, StartsTheNextEpochAfterABreak) {
  const auto dataset = std::make_shared<Numbers>(30);
  DataLoader loader(dataset, std::make_shared<RandomSampler>(30, 2), options(5));
  for (const Batch& batch : loader) {
    if (batch.size() > 0) break;
  }
  EXPECT_EQ(loader.state(), (DataLoader::State{0, 1}));
  const Seen after_break = read_epoch(loader);
  DataLoader fresh(dataset, std::make_shared<RandomSampler>(30, 2), options(5));
  fresh.set_epoch(1);
  EXPECT_EQ(after_break, read_epoch(fresh));
}

TEST_P(WithWorkers, EndsAnEpochUntilToldToGoOn) {
  DataLoader loader(std::make_shared<Numbers>(2), std::make_shared<SequentialSampler>(2),
                    options(2));
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_FALSE(loader.next().has_value());
  EXPECT_FALSE(loader.next().has_value());
  loader.set_epoch(1);
  EXPECT_TRUE(loader.next().has_value());
}

TEST_P(WithWorkers, NamesTheBatchAndTheSampleThatFailedAndCanGoOn) {
  const auto dataset = std::make_shared<Numbers>(20, 13);
  DataLoader loader(dataset, std::make_shared<SequentialSampler>(20), options(5));
  EXPECT_EQ(loader.next()->input.to_vector<int64_t>()[0], 0);
  EXPECT_EQ(loader.next()->input.to_vector<int64_t>()[0], 5);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::string message = message_of([&] { loader.next(); });
    EXPECT_THAT(message, HasSubstr("batch 2 of epoch 0"));
    EXPECT_THAT(message, HasSubstr("sample 13"));
    EXPECT_THAT(message, HasSubstr("broken sample"));
    EXPECT_EQ(loader.state(), (DataLoader::State{0, 2}));
  }
  loader.resume(3);
  EXPECT_EQ(loader.next()->input.to_vector<int64_t>()[0], 15);
}

TEST_P(WithWorkers, RefusesASamplerThatNamesAbsentSamples) {
  DataLoader loader(std::make_shared<Numbers>(4),
                    std::make_shared<SubsetSampler>(std::vector<int64_t>{1, 4}), options(1));
  EXPECT_THAT(message_of([&] { loader.next(); }), HasSubstr("sample 4, but the dataset has 4"));
}

TEST_P(WithWorkers, HasNoBatchWithoutSamples) {
  DataLoader loader(std::make_shared<Numbers>(4), std::make_shared<SequentialSampler>(0),
                    options(2));
  EXPECT_EQ(loader.size(), 0);
  EXPECT_TRUE(read_epoch(loader).batches.empty());
}

TEST_P(WithWorkers, IsDestroyedInMidEpoch) {
  for (int64_t taken = 0; taken < 4; ++taken) {
    DataLoader loader(std::make_shared<Numbers>(1000), std::make_shared<SequentialSampler>(1000),
                      options(2));
    for (int64_t i = 0; i < taken; ++i) loader.next();
  }
}

// Counts how many batches were begun, and lets a test wait for a number of them.
class Counted : public Dataset {
 public:
  int64_t size() const override { return 1000; }
  Example get(int64_t) const override { return {}; }
  Batch batch(std::span<const int64_t> indices) const override {
    const std::lock_guard lock(mutex_);
    ++begun_;
    changed_.notify_all();
    return {Tensor::from(indices, {static_cast<int64_t>(indices.size())}), Tensor()};
  }
  void wait_for(int64_t batches) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_ >= batches; });
  }
  int64_t begun() const {
    const std::lock_guard lock(mutex_);
    return begun_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int64_t begun_ = 0;
};

TEST(DataLoader, LoadsAheadAsFarAsPrefetchAndNoFarther) {
  const auto dataset = std::make_shared<Counted>();
  DataLoader loader(dataset, std::make_shared<SequentialSampler>(1000),
                    {.batch_size = 1, .workers = 4, .prefetch = 3});
  for (int64_t taken = 1; taken <= 5; ++taken) {
    loader.next();
    dataset->wait_for(taken + 3);  // ends only if the workers go on without next()
    EXPECT_EQ(dataset->begun(), taken + 3);
  }
}

TEST(DataLoader, RefusesOptionsOutOfRange) {
  const auto dataset = std::make_shared<Numbers>(4);
  const auto sampler = std::make_shared<SequentialSampler>(4);
  EXPECT_THROW(DataLoader(nullptr, sampler), Error);
  EXPECT_THROW(DataLoader(dataset, nullptr), Error);
  EXPECT_THROW(DataLoader(dataset, sampler, {.batch_size = 0}), Error);
  EXPECT_THROW(DataLoader(dataset, sampler, {.workers = -1}), Error);
  EXPECT_THROW(DataLoader(dataset, sampler, {.prefetch = 0}), Error);
  DataLoader loader(dataset, sampler, {.batch_size = 2});
  EXPECT_THROW(loader.resume(3), Error);
  EXPECT_THROW(loader.resume(-1), Error);
  EXPECT_THROW(loader.set_epoch(-1), Error);
}

}  // namespace
}  // namespace lockstep::nn
