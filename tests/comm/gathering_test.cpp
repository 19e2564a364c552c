// Ranks that find each other in the store fail together: a rank that cannot go on, or dies, ends
// every wait of the others, by name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../errors.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/store.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr milliseconds kLong{60'000};

class GatheringTest : public testing::Test {
 protected:
  std::shared_ptr<Store> client() {
    return std::make_shared<Store>(Endpoint{"127.0.0.1", server_.port()}, "t", "j", kLong);
  }

  StoreServer server_{{"127.0.0.1", 0, "t", "j"}};
};

TEST_F(GatheringTest, AFailureEndsEveryWaitOfTheGroupAndNoOther) {
  const auto store = client();
  Gathering one(store, "g/", 1);
  Gathering other(store, "other/", 1);
  std::vector<std::thread> waiting;
  const auto waits = [&](auto call) {
    waiting.emplace_back([this, call] {
      const Error error = error_of([&] { call(*client()); });
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 has no memory"));
    });
  };
  waits([](Store& s) { s.get("g/key", kLong); });
  waits([](Store& s) { s.get("g/deep/key", kLong); });
  waits([](Store& s) { s.barrier("g/barrier", 2, 3, kLong); });
  std::thread elsewhere([this] { EXPECT_EQ(client()->get("other/key", kLong), "value"); });
  {
    Gathering zero(client(), "g/", 0);
    zero.fail(ErrorCode::kOutOfMemory, "rank 0 has no memory");
    zero.fail(ErrorCode::kIo, "the first counts");
  }
  for (std::thread& thread : waiting) thread.join();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(error_of([&] {
                  while (true) one.check();
                }).what(),
                HasSubstr("rank 0 has no memory"));
  }
  // What comes later is told, too, but values that are there can be read.
  store->set("g/set", "value");
  EXPECT_EQ(store->get("g/set", kLong), "value");
  EXPECT_EQ(error_of([&] { store->get("g/later", kLong); }).code(), ErrorCode::kPeerLost);
  Gathering late(store, "g/", 2);
  EXPECT_EQ(error_of([&] {
              while (true) late.check();
            }).code(),
            ErrorCode::kPeerLost);
  other.check();
  store->set("other/key", "value");
  elsewhere.join();
}

TEST_F(GatheringTest, ADeathIsAFailureByName) {
  const auto store = client();
  Gathering one(store, "g/", 1);
  const auto dying = client();
  Gathering two(dying, "g/", 2);
  std::thread waiting([this] {
    EXPECT_THAT(error_of([&] { client()->get("g/key", kLong); }).what(), HasSubstr("rank 2 died"));
  });
  dying->close();  // its connections end, as those of a process that dies
  waiting.join();
  EXPECT_THAT(error_of([&] {
                while (true) one.check();
              }).what(),
              HasSubstr("rank 2 died"));
}

TEST_F(GatheringTest, WhoLeavesMayEnd) {
  const auto store = client();
  Gathering one(store, "g/", 1);
  {
    const auto leaving = client();
    const Gathering two(leaving, "g/", 2);
  }
  one.check();
  EXPECT_FALSE(one.wait_readable(one.fd(), deadline_after(milliseconds(30))));
}

TEST_F(GatheringTest, TimeoutsAndDisagreementsKeepTheirKind) {
  const auto store = client();
  for (const ErrorCode code : {ErrorCode::kTimeout, ErrorCode::kMismatch}) {
    const std::string group = concat("g", static_cast<int>(code), "/");
    Gathering one(store, group, 1);
    one.fail(code, "why");
    EXPECT_EQ(error_of([&] { store->get(group + "key", kLong); }).code(), code);
  }
  EXPECT_EQ(error_of([&] {
              Gathering nameless(store, "no-slash", 1);
              while (true) nameless.check();
            }).code(),
            ErrorCode::kInvalidArgument);
}

// Ranks 0 and 1 make a group of 3; rank 2 does what the test says instead of joining.
class ConstructionTest : public GatheringTest, public testing::WithParamInterface<std::string> {
 protected:
  // What rank 2 tells the others first, so that they go on to connect.
  void say_host(Store& store) {
    const std::string zero = store.get("comm/world/1/host/0", kLong);
    store.set("comm/world/1/host/2", zero);
  }

  template <class RankTwo>
  void expect_failure(const std::string& text, RankTwo rank_two) {
    Options options;
    options.transport = GetParam();
    options.timeout = kLong;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const World world{rank, 3, rank, 3, "127.0.0.1", server_.port(), true, "t", "j"};
        const Error error = error_of([&] { connect(world, client(), options); });
        EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
        EXPECT_THAT(error.what(), HasSubstr(text));
      });
    }
    const Deadline start = Clock::now();
    rank_two();
    for (std::thread& rank : ranks) rank.join();
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));  // and not the timeout of a minute
  }
};

INSTANTIATE_TEST_SUITE_P(All, ConstructionTest, testing::Values("shm", "tcp"));

TEST_P(ConstructionTest, ARankThatDiesWhileOthersWaitForItsConnectionIsNamed) {
  expect_failure("rank 2 died", [&] {
    const auto store = client();
    const Gathering gathering(store, "comm/world/1/", 2);
    say_host(*store);
    // The others are about to listen for rank 2.
    for (int rank = 0; rank < 2; ++rank) {
      store->get(concat("comm/world/1/", GetParam(), "/", rank), kLong);
    }
    store->close();
  });
}

TEST_P(ConstructionTest, ARankThatFailsWhileOthersWaitForItsConnectionIsQuoted) {
  expect_failure("rank 2 could not join: too many open files", [&] {
    const auto store = client();
    Gathering gathering(store, "comm/world/1/", 2);
    say_host(*store);
    gathering.fail(ErrorCode::kIo, "rank 2 could not join: too many open files");
  });
}

TEST_P(ConstructionTest, ARankWithAnUnknownOptionFailsItOnAll) {
  expect_failure("\"pigeon\"", [&] {
    const World world{2, 3, 2, 3, "127.0.0.1", server_.port(), true, "t", "j"};
    Options options;
    options.transport = "pigeon";
    EXPECT_EQ(error_of([&] { connect(world, client(), options); }).code(),
              ErrorCode::kInvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep::comm
