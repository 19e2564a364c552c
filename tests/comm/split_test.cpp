// Groups of groups: who is in them, that they are groups of their own, and that a failure in making
// one is a failure on every rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "../errors.h"
#include "lockstep/comm/communicator.h"
#include "on_transports.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Splits : public OnTransports {};
INSTANTIATE_TEST_SUITE_P(All, Splits, kTransports, transport_name);

TEST_P(Splits, ColorsMakeGroupsAndKeysNumberTheirRanks) {
  on_ranks(5, [](Communicator& world) {
    const int rank = world.rank();
    // Evens in reverse order, odds in order.
    const auto group = world.split(rank % 2, rank % 2 == 0 ? -rank : 7);
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->size(), rank % 2 == 0 ? 3 : 2);
    EXPECT_EQ(group->rank(), rank % 2 == 0 ? 2 - rank / 2 : rank / 2);
    EXPECT_EQ(group->world_rank(), rank);
    EXPECT_EQ(group->world_rank(0), rank % 2 == 0 ? 4 : 1);
    EXPECT_EQ(group->transport(), GetParam());
    EXPECT_EQ(group->timeout(), world.timeout());
    EXPECT_EQ(members(*group), rank % 2 == 0 ? 10101 : 1010);

    // Larger than any message that goes in one shot, in the group's own order of folding.
    constexpr int64_t kCount = 70001;
    const Blocks blocks = Blocks::of_all(kCount, group->size());
    Bytes data = input_of(DType::kF32, group->rank(), kCount);
    group->all_reduce(data.data(), data.data(), kCount, DType::kF32, ReduceOp::kSum).wait();
    EXPECT_EQ(data, folded_inputs(DType::kF32, ReduceOp::kSum, blocks));
    EXPECT_EQ(members(world), 11111);
  });
}

TEST_P(Splits, ARankWithoutAColorHasNoGroup) {
  on_ranks(3, [](Communicator& world) {
    const bool out = world.rank() == 1;
    const auto group = world.split(out ? Communicator::kNoColor : 3);
    EXPECT_EQ(group == nullptr, out);
    if (group != nullptr) {
      EXPECT_EQ(members(*group), 101);
    }
  });
}

TEST_P(Splits, GroupsOfGroupsKnowTheirWorldAndOutliveTheirParents) {
  on_ranks(4, [](Communicator& world) {
    auto three = world.split(world.rank() == 0 ? 1 : 0);
    auto two = three->split(three->rank() == 0 ? 0 : 1, -three->rank());
    three = nullptr;
    const int64_t want[] = {1, 10, 1100, 1100};
    EXPECT_EQ(members(*two), want[world.rank()]);
    EXPECT_EQ(two->world_rank(), world.rank());
    if (world.rank() >= 2) {
      EXPECT_EQ(two->world_rank(0), 3);
    }
  });
}

TEST_P(Splits, TheOrdersOfTwoGroupsDoNotDisturbEachOther) {
  on_ranks(2, [](Communicator& world) {
    const auto other = world.duplicate();
    EXPECT_EQ(other->rank(), world.rank());
    for (int round = 0; round < 20; ++round) {
      const int64_t count = round % 2 == 0 ? 3 : 40001;
      std::vector<int32_t> a(count, world.rank());
      std::vector<int32_t> b(count, world.rank() + 10);
      const auto begin = [&](Communicator& group, std::vector<int32_t>& data) {
        return group.all_reduce(data.data(), data.data(), count, DType::kI32, ReduceOp::kSum);
      };
      // Each rank begins with another group.
      Work first = world.rank() == 0 ? begin(world, a) : begin(*other, b);
      Work second = world.rank() == 0 ? begin(*other, b) : begin(world, a);
      first.wait();
      second.wait();
      EXPECT_EQ(a.back(), 1);
      EXPECT_EQ(b.back(), 21);
    }
  });
}

TEST_P(Splits, IsInOrderWithTheOtherCollectives) {
  on_ranks(3, [](Communicator& world) {
    const bool last = world.rank() == 2;
    const std::string what = message_of(ErrorCode::kMismatch, [&] {
      if (last) {
        world.barrier().wait();
      } else {
        world.split(0);
      }
    });
    EXPECT_THAT(what, AllOf(HasSubstr("asked for split"), HasSubstr("rank 2 asked for barrier")));
  });
}

TEST_P(Splits, AnErrorInAGroupSaysWhoItsRanksAreAndLeavesTheWorldAsItWas) {
  on_ranks(3, [](Communicator& world) {
    auto group = world.split(world.rank() == 0 ? 0 : 1, -world.rank());
    if (world.rank() == 2) group = nullptr;
    if (world.rank() == 1) {
      const std::string what = message_of(ErrorCode::kPeerLost, [&] { group->barrier().wait(); });
      EXPECT_THAT(what, AllOf(HasSubstr("rank 0 left"),
                              HasSubstr("the ranks of this group are, in order, ranks 2, 1 of the "
                                        "world")));
    }
    EXPECT_EQ(members(world), 111);
  });
}

TEST_P(Splits, AColorWithoutMeaningIsRefusedAtOnce) {
  on_ranks(2, [](Communicator& world) {
    message_of(ErrorCode::kInvalidArgument, [&] { world.split(-2); });
    EXPECT_EQ(members(world), 11);
  });
}

TEST(Splits, WhatFailsOnOneRankFailsOnAll) {
  StoreServer server({"127.0.0.1", 0, "t", ""});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      World world{rank, 3, rank, 3, "127.0.0.1", server.port(), true, "t", ""};
      const Options options = options_of({"shm", ""}, std::chrono::seconds(1));
      const auto store = Store::connect(world, std::chrono::seconds(10));
      const auto group = connect(world, store, options);
      if (rank == 1) store->close();
      // Rank 0 is alone in its group, whose making needs nobody; ranks 1 and 2 need the store.
      const std::string what = message_of(rank == 0   ? ErrorCode::kPeerLost
                                          : rank == 1 ? ErrorCode::kCancelled
                                                      : ErrorCode::kTimeout,
                                          [&] { group->split(rank == 0 ? 0 : 1); });
      if (rank == 0) {
        EXPECT_THAT(what, HasSubstr("rank 1 could not join its new group"));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace lockstep::comm
