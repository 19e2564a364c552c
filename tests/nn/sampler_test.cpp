#include "lockstep/nn/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>

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

std::vector<int64_t> read(Sampler& sampler, int64_t most = 1000) {
  std::vector<int64_t> out;
  while (static_cast<int64_t>(out.size()) < most) {
    const auto sample = sampler.next();
    if (!sample) break;
    out.push_back(*sample);
  }
  return out;
}

TEST(Sampler, NextReadsWhatIndicesSays) {
  DistributedSampler sampler(23, 3, 2, {.seed = 4});
  for (const int64_t epoch : {0, 5}) {
    sampler.set_epoch(epoch);
    const std::vector<int64_t> want = sampler.indices();
    sampler.set_epoch(epoch);
    EXPECT_EQ(read(sampler), want);
    EXPECT_EQ(sampler.state(), (Sampler::State{epoch, 8}));
  }
  SequentialSampler empty(0);
  EXPECT_EQ(empty.next(), std::nullopt);
}

TEST(Sampler, GoesOnInTheMiddleOfAnEpoch) {
  DistributedSampler whole(31, 2, 1, {.seed = 8});
  whole.set_epoch(4);
  const std::vector<int64_t> want = read(whole);
  for (int64_t done = 0; done <= whole.size(); ++done) {
    DistributedSampler first(31, 2, 1, {.seed = 8});
    first.set_epoch(4);
    std::vector<int64_t> got = read(first, done);
    DistributedSampler second(31, 2, 1, {.seed = 8});
    second.resume(first.state());
    const std::vector<int64_t> rest = read(second);
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_EQ(got, want) << done;
  }
  EXPECT_THROW(whole.resume({0, 17}), Error);
  EXPECT_THROW(whole.resume({0, -1}), Error);
  EXPECT_EQ(whole.state(), (Sampler::State{4, 16}));
}

TEST(Sampler, WarnsOnceByNameWhereSetEpochWasForgotten) {
  const auto said = [](Sampler& sampler, bool set_epoch) {
    ::testing::internal::CaptureStderr();
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      if (set_epoch) sampler.set_epoch(epoch);
      read(sampler);
    }
    return ::testing::internal::GetCapturedStderr();
  };
  DistributedSampler distributed(9, 2, 0);
  RandomSampler random(9);
  WeightedRandomSampler weighted({1, 2, 3}, 9);
  const std::pair<const char*, Sampler*> samplers[] = {{"DistributedSampler", &distributed},
                                                       {"RandomSampler", &random},
                                                       {"WeightedRandomSampler", &weighted}};
  for (const auto& [name, sampler] : samplers) {
    EXPECT_EQ(said(*sampler, true), "");
    sampler->set_epoch(0);
    const std::string text = said(*sampler, false);
    EXPECT_THAT(text, ::testing::StartsWith(std::string("lockstep: warning: ") + name));
    EXPECT_THAT(text, ::testing::HasSubstr("epoch 0"));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  }
  // An order that every epoch has is no mistake.
  DistributedSampler in_order(9, 2, 0, {.shuffle = false});
  EXPECT_EQ(said(in_order, false), "");
}

TEST(Sampler, WithoutSetEpochTheSameEpochBeginsAgain) {
  SequentialSampler sampler(3);
  EXPECT_THAT(read(sampler), ElementsAre(0, 1, 2));
  EXPECT_THAT(read(sampler), ElementsAre(0, 1, 2));
}

TEST(WeightedRandomSampler, DrawsInProportionToTheWeights) {
  // Weights whose sum is not finite, and others whose quotients are not.
  for (const double unit : {1.0, 1e308, 1e-308}) {
    constexpr int64_t kDraws = 40000;
    WeightedRandomSampler sampler({0, 1 * unit, 0, 0.25 * unit, 0.75 * unit, 0}, kDraws,
                                  {.seed = 3});
    std::vector<int64_t> times(6);
    for (const int64_t i : sampler.indices()) ++times[static_cast<size_t>(i)];
    EXPECT_THAT(times, ElementsAre(0, ::testing::_, 0, ::testing::_, ::testing::_, 0));
    // Five standard deviations of a binomial.
    EXPECT_NEAR(static_cast<double>(times[1]), 20000, 500);
    EXPECT_NEAR(static_cast<double>(times[3]), 5000, 331);
    EXPECT_NEAR(static_cast<double>(times[4]), 15000, 485);
  }
}

TEST(WeightedRandomSampler, WithoutReplacementTakesEachOnceAndHeavyOnesFirst) {
  const std::vector<double> weights = {1e-320, 3, 0, 1, 2, 4};
  int64_t first_is_5 = 0, first_3_second_1 = 0, first_is_3 = 0;
  constexpr int64_t kEpochs = 4000;
  WeightedRandomSampler sampler(weights, 5, {.replacement = false, .seed = 1});
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    const std::vector<int64_t> order = sampler.indices();
    ASSERT_THAT(sorted(order), ElementsAre(0, 1, 3, 4, 5));
    ASSERT_EQ(order.back(), 0);
    if (order[0] == 5) ++first_is_5;
    if (order[0] == 3) ++first_is_3;
    if (order[0] == 3 && order[1] == 1) ++first_3_second_1;
  }
  EXPECT_NEAR(static_cast<double>(first_is_5), 0.4 * kEpochs, 155);
  EXPECT_NEAR(static_cast<double>(first_is_3), 0.1 * kEpochs, 95);
  EXPECT_NEAR(static_cast<double>(first_3_second_1), 0.1 * kEpochs / 3, 57);
}

TEST(WeightedRandomSampler, IsSharedOutAmongRanks) {
  const std::vector<double> weights = {1, 5, 2, 4, 3, 0.5, 0};
  for (const bool replacement : {true, false}) {
    for (const int world : {1, 2, 3, 4, 9}) {
      WeightedRandomSampler whole(weights, 5, {.replacement = replacement, .seed = 6});
      whole.set_epoch(2);
      const std::vector<int64_t> order = whole.indices();
      for (int rank = 0; rank < world; ++rank) {
        WeightedRandomSampler sampler(
            weights, 5, {.replacement = replacement, .seed = 6, .world_size = world, .rank = rank});
        sampler.set_epoch(2);
        const std::vector<int64_t> mine = sampler.indices();
        ASSERT_EQ(static_cast<int64_t>(mine.size()), (5 + world - 1) / world);
        ASSERT_EQ(static_cast<int64_t>(mine.size()), sampler.size());
        for (size_t i = 0; i < mine.size(); ++i) {
          const size_t place = static_cast<size_t>(rank) + i * static_cast<size_t>(world);
          EXPECT_EQ(mine[i], order[place % order.size()]);
        }
      }
    }
  }
}

TEST(WeightedRandomSampler, RefusesWhatCannotBeDrawn) {
  const auto message = [](const std::vector<double>& weights, int64_t count, bool replacement) {
    try {
      WeightedRandomSampler sampler(weights, count, {.replacement = replacement});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message({1, -0.5}, 1, true), ::testing::HasSubstr("got -0.5 for sample 1"));
  EXPECT_THAT(message({1, 1, NAN}, 1, true), ::testing::HasSubstr("for sample 2"));
  EXPECT_THAT(message({INFINITY}, 1, true), ::testing::HasSubstr("for sample 0"));
  EXPECT_THAT(message({0, 0, 0}, 1, true), ::testing::HasSubstr("got none among 3"));
  EXPECT_THAT(message({1, 0, 1}, 3, false), ::testing::HasSubstr("above 0, 2,"));
  EXPECT_THAT(message({1}, -1, true), ::testing::HasSubstr("got -1"));
  EXPECT_EQ(message({}, 0, true), "");
  EXPECT_THROW(WeightedRandomSampler({1}, 1, {.world_size = 2, .rank = 2}), Error);
}

TEST(DistributedSampler, RefusesARankThatIsNotThere) {
  EXPECT_THROW(DistributedSampler(5, 2, 2), Error);
  EXPECT_THROW(DistributedSampler(5, 2, -1), Error);
  EXPECT_THROW(DistributedSampler(5, 0, 0), Error);
  EXPECT_THROW(DistributedSampler(-5, 2, 0), Error);
}

}  // namespace
}  // namespace lockstep::nn
