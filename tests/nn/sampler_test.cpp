#include "lockstep/nn/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "lockstep/kernels/error.h"

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int64_t> first_numbers(int64_t size) {
  std::vector<int64_t> numbers(static_cast<size_t>(size));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

TEST(SequentialSampler, CountsUp) {
  EXPECT_THAT(SequentialSampler(4).indices(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(SequentialSampler(0).indices(), IsEmpty());
  EXPECT_THROW(SequentialSampler(-1), Error);
}

TEST(SubsetSampler, KeepsItsList) {
  const SubsetSampler sampler({7, 3, 7});
  EXPECT_EQ(sampler.size(), 3);
  EXPECT_THAT(sampler.indices(), ElementsAre(7, 3, 7));
}

TEST(RandomSampler, IsAPermutationOfItsOwnForEachEpoch) {
  RandomSampler sampler(257, 11);
  std::set<std::vector<int64_t>> seen;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    sampler.set_epoch(epoch);
    const std::vector<int64_t> order = sampler.indices();
    EXPECT_EQ(sorted(order), first_numbers(257));
    EXPECT_NE(order, first_numbers(257));
    EXPECT_EQ(order, sampler.indices());
    seen.insert(order);
  }
  EXPECT_EQ(seen.size(), 5u);
}

TEST(RandomSampler, FollowsItsSeed) {
  EXPECT_EQ(RandomSampler(100, 3).indices(), RandomSampler(100, 3).indices());
  EXPECT_NE(RandomSampler(100, 3).indices(), RandomSampler(100, 4).indices());
  EXPECT_THAT(RandomSampler(0, 3).indices(), IsEmpty());
}

TEST(Sampler, RefusesANegativeEpoch) {
  RandomSampler sampler(5);
  EXPECT_THROW(sampler.set_epoch(-1), Error);
  EXPECT_EQ(sampler.epoch(), 0);
}

TEST(DistributedSampler, TakesEveryWorldSizethPlace) {
  const DistributedSamplerOptions in_order{.shuffle = false};
  EXPECT_THAT(DistributedSampler(6, 2, 0, in_order).indices(), ElementsAre(0, 2, 4));
  EXPECT_THAT(DistributedSampler(6, 2, 1, in_order).indices(), ElementsAre(1, 3, 5));
}

TEST(DistributedSampler, PadsFromTheStartAsOftenAsNeeded) {
  const DistributedSamplerOptions in_order{.shuffle = false};
  EXPECT_THAT(DistributedSampler(5, 3, 0, in_order).indices(), ElementsAre(0, 3));
  EXPECT_THAT(DistributedSampler(5, 3, 1, in_order).indices(), ElementsAre(1, 4));
  EXPECT_THAT(DistributedSampler(5, 3, 2, in_order).indices(), ElementsAre(2, 0));
  // Two samples for seven ranks: 0 1 0 1 0 1 0.
  for (int rank = 0; rank < 7; ++rank) {
    EXPECT_THAT(DistributedSampler(2, 7, rank, in_order).indices(), ElementsAre(rank % 2));
  }
}

TEST(DistributedSampler, DropsTheLastOnRequest) {
  const DistributedSamplerOptions options{.shuffle = false, .drop_last = true};
  EXPECT_THAT(DistributedSampler(5, 3, 0, options).indices(), ElementsAre(0));
  EXPECT_THAT(DistributedSampler(5, 3, 2, options).indices(), ElementsAre(2));
  EXPECT_THAT(DistributedSampler(2, 7, 6, options).indices(), IsEmpty());
}

TEST(DistributedSampler, SharesOutWholeEpochsEvenlyForAnySizeAndWorld) {
  for (const int64_t size : {0, 1, 2, 7, 16, 33, 101}) {
    for (const int world : {1, 2, 3, 4, 8, 40}) {
      for (const bool drop_last : {false, true}) {
        const DistributedSamplerOptions options{.seed = 5, .drop_last = drop_last};
        std::map<int64_t, int64_t> times;
        int64_t total = 0;
        for (int rank = 0; rank < world; ++rank) {
          DistributedSampler sampler(size, world, rank, options);
          sampler.set_epoch(2);
          const std::vector<int64_t> mine = sampler.indices();
          const int64_t each = drop_last ? size / world : (size + world - 1) / world;
          ASSERT_EQ(sampler.size(), each);
          ASSERT_EQ(static_cast<int64_t>(mine.size()), each);
          for (const int64_t index : mine) {
            ASSERT_GE(index, 0);
            ASSERT_LT(index, size);
            ++times[index];
            ++total;
          }
        }
        // No sample is read more than once oftener than another, and none is lost but by drop_last.
        if (size > 0 && !drop_last) {
          ASSERT_EQ(static_cast<int64_t>(times.size()), size);
        }
        for (const auto& [index, count] : times) {
          ASSERT_LE(count, (total + size - 1) / size) << "sample " << index;
        }
      }
    }
  }
}

TEST(DistributedSampler, GivesAGlobalBatchTheSameSamplesAtEveryWorldSize) {
  constexpr int64_t kSize = 64;
  constexpr int64_t kGlobalBatch = 16;
  RandomSampler whole(kSize, 9);
  whole.set_epoch(3);
  const std::vector<int64_t> order = whole.indices();
  for (const int world : {1, 2, 4}) {
    const int64_t local = kGlobalBatch / world;
    for (int64_t step = 0; step < kSize / kGlobalBatch; ++step) {
      std::vector<int64_t> batch;
      for (int rank = 0; rank < world; ++rank) {
        DistributedSampler sampler(kSize, world, rank, {.seed = 9});
        sampler.set_epoch(3);
        const std::vector<int64_t> mine = sampler.indices();
        batch.insert(batch.end(), mine.begin() + step * local, mine.begin() + (step + 1) * local);
      }
      const std::vector<int64_t> want(order.begin() + step * kGlobalBatch,
                                      order.begin() + (step + 1) * kGlobalBatch);
      EXPECT_EQ(sorted(batch), sorted(want)) << "world " << world << ", step " << step;
    }
  }
}

TEST(DistributedSampler, ShufflesAnewEachEpoch) {
  DistributedSampler sampler(100, 2, 1, {.seed = 1});
  const std::vector<int64_t> first = sampler.indices();
  sampler.set_epoch(1);
  EXPECT_NE(sampler.indices(), first);
  sampler.set_epoch(0);
  EXPECT_EQ(sampler.indices(), first);
}

TEST(DistributedSampler, RefusesARankThatIsNotThere) {
  EXPECT_THROW(DistributedSampler(5, 2, 2), Error);
  EXPECT_THROW(DistributedSampler(5, 2, -1), Error);
  EXPECT_THROW(DistributedSampler(5, 0, 0), Error);
  EXPECT_THROW(DistributedSampler(-5, 2, 0), Error);
}

}  // namespace
}  // namespace lockstep::nn
