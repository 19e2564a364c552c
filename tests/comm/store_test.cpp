#include "lockstep/comm/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "../errors.h"
#include "lockstep/comm/auth.h"
#include "lockstep/comm/store_wire.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr milliseconds kLong{60'000};
constexpr milliseconds kShort{30};

// A server and as many clients as a test asks for.
class StoreTest : public testing::Test {
 protected:
  StoreServer::Options options() const { return {"127.0.0.1", 0, token_, "job", kLong}; }
  Endpoint endpoint() const { return {"127.0.0.1", server_->port()}; }
  std::unique_ptr<Store> client() {
    return std::make_unique<Store>(endpoint(), token_, "job", kLong);
  }

  // A stranger's connection.
  Fd stranger() { return connect_tcp(endpoint(), deadline_after(kLong), "test"); }
  static void send(const Fd& fd, std::string_view bytes) {
    write_full(fd, bytes.data(), bytes.size(), deadline_after(kLong), "test", "the store");
  }
  // A connection that has proved itself, for requests as bytes.
  Fd member() {
    Fd fd = stranger();
    authenticate_as_connector(fd, token_, "store|job", deadline_after(kLong), "test", "store");
    return fd;
  }
  static std::string barrier_frame(std::string_view name, int rank, int size) {
    return FrameWriter(static_cast<uint8_t>(StoreOp::kBarrier))
        .text(name)
        .number(rank)
        .number(size)
        .take();
  }
  // The message of the error that the server sends.
  static std::string reply_of(const Fd& fd, ErrorCode code) {
    uint32_t bytes = 0;
    read_full(fd, &bytes, sizeof bytes, deadline_after(kLong), "test", "the store");
    std::string reply(bytes, '\0');
    read_full(fd, reply.data(), bytes, deadline_after(kLong), "test", "the store");
    EXPECT_EQ(reply[0], 1 + static_cast<int>(code));
    return reply.substr(1);
  }
  // Waits until the server hangs up.
  static void expect_dropped(const Fd& fd) {
    char bytes[256];
    while (wait_readable(fd, deadline_after(kLong))) {
      const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, 0);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return;
    }
    ADD_FAILURE() << "the server kept the connection";
  }

  const std::string token_ = random_token();
  std::unique_ptr<StoreServer> server_ = std::make_unique<StoreServer>(options());
};

TEST_F(StoreTest, KeepsBytesAsTheyAre) {
  const auto store = client();
  const std::string odd("a\0\xff\n\r=", 6);
  store->set("key", odd);
  store->set("", "empty key");
  store->set("empty", "");
  const auto other = client();
  EXPECT_EQ(other->get("key", kLong), odd);
  EXPECT_EQ(other->get("", kLong), "empty key");
  EXPECT_EQ(other->get("empty", kLong), "");
  EXPECT_EQ(other->try_get("empty"), "");
  EXPECT_EQ(other->try_get("none"), std::nullopt);
  store->set("key", "new");
  EXPECT_EQ(other->get("key", kLong), "new");
}

TEST_F(StoreTest, CarriesItsLargestValueAndRefusesALargerOne) {
  const auto store = client();
  std::string value(kMaxValueBytes, '\0');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7 + i / 251);
  store->set("large", value);
  EXPECT_TRUE(store->get("large", kLong) == value);
  value += 'x';
  EXPECT_THAT(error_of([&] { store->set("large", value); }).what(), HasSubstr("large"));
  EXPECT_EQ(error_of([&] { store->set(std::string(kMaxKeyBytes + 1, 'k'), ""); }).code(),
            ErrorCode::kInvalidArgument);
  store->set(std::string(kMaxKeyBytes, 'k'), "fits");
}

TEST_F(StoreTest, GetWaitsUntilAnotherRankSetsTheKey) {
  std::vector<std::string> got(5);
  std::vector<std::thread> waiting;
  for (size_t i = 0; i < got.size(); ++i) {
    waiting.emplace_back([&, i] { got[i] = client()->get("late", kLong); });
  }
  client()->set("late", "value");
  for (std::thread& thread : waiting) thread.join();
  EXPECT_THAT(got, testing::Each("value"));
}

TEST_F(StoreTest, GetThatWaitsInVainNamesTheKeyAndLeavesTheClientWell) {
  const auto store = client();
  for (int i = 0; i < 3; ++i) {
    const Error error = error_of([&] { store->get("never", kShort); });
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"never\""), HasSubstr("0.03 s")));
  }
  store->set("never", "after all");
  EXPECT_EQ(store->get("never", kShort), "after all");
}

TEST_F(StoreTest, ACallThatWaitsDoesNotHoldUpOthersOfTheSameClient) {
  const auto store = client();
  std::thread waiting([&] { EXPECT_EQ(store->get("key", kLong), "value"); });
  for (int i = 0; i < 100; ++i) store->add("count", 1);
  store->set("key", "value");
  waiting.join();
}

TEST_F(StoreTest, AddsAreAtomicAndEachSumIsSeenOnce) {
  constexpr int kThreads = 6;
  constexpr int kAdds = 101;
  const auto shared = client();
  std::vector<std::atomic<int>> seen(kThreads * kAdds + 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto own = t % 2 == 0 ? client() : nullptr;
      Store& store = own ? *own : *shared;
      for (int i = 0; i < kAdds; ++i) seen[static_cast<size_t>(store.add("n", 1))]++;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen[0], 0);
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_EQ(seen[i], 1) << i;
  EXPECT_EQ(shared->add("n", -kThreads * kAdds - 5), -5);
  EXPECT_EQ(shared->get("n", kLong), "-5");
}

TEST_F(StoreTest, AddRefusesWhatIsNoCounterAndWhatDoesNotFit) {
  const auto store = client();
  store->set("text", "12 pears");
  EXPECT_THAT(error_of([&] { store->add("text", 1); }).what(), HasSubstr("\"text\""));
  store->add("n", std::numeric_limits<int64_t>::max());
  EXPECT_EQ(error_of([&] { store->add("n", 1); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store->add("n", std::numeric_limits<int64_t>::min()), -1);
}

TEST_F(StoreTest, AddWakesThoseWhoWaitForTheCounter) {
  std::thread waiting([&] { EXPECT_EQ(client()->get("n", kLong), "7"); });
  client()->add("n", 7);
  waiting.join();
}

TEST_F(StoreTest, EraseSaysWhetherThereWasSomething) {
  const auto store = client();
  store->set("key", "value");
  EXPECT_TRUE(store->erase("key"));
  EXPECT_FALSE(store->erase("key"));
  EXPECT_EQ(error_of([&] { store->get("key", kShort); }).code(), ErrorCode::kTimeout);
}

TEST_F(StoreTest, NobodyLeavesABarrierBeforeTheLastHasCome) {
  constexpr int kRanks = 5;
  std::atomic<int> inside{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto store = client();
      for (int round = 1; round <= 20; ++round) {  // one name, again and again
        inside++;
        store->barrier("b", rank, kRanks, kLong);
        EXPECT_GE(inside, round * kRanks);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(StoreTest, ABarrierThatWaitsInVainEndsForAllAndNamesEveryRankThatIsMissing) {
  // Rank 1 is there first, and would wait for ever.
  const Fd rank1 = member();
  send(rank1, barrier_frame("start", 1, 6));
  const Error error = error_of([&] { client()->barrier("start", 4, 6, kShort); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 4 waited 0.03 s"), HasSubstr("\"start\""),
                                  HasSubstr("ranks 0, 2, 3, 5 have not come")));
  // It need not, since rank 4 will not be there; nor does one that comes later.
  EXPECT_THAT(error.what(), HasSubstr(reply_of(rank1, ErrorCode::kTimeout)));
  EXPECT_STREQ(error_of([&] { client()->barrier("start", 0, 6, kLong); }).what(), error.what());
}

TEST_F(StoreTest, ARankThatDiesInABarrierEndsItForTheOthersByName) {
  const Fd waiting = member();
  send(waiting, barrier_frame("b", 0, 3));
  const Fd dying = member();
  send(dying, barrier_frame("b", 2, 3));
  ::shutdown(dying.get(), SHUT_WR);  // what the server sees of a death, once it has read the rest
  EXPECT_THAT(reply_of(waiting, ErrorCode::kPeerLost), HasSubstr("rank 2"));
  const Error error = error_of([&] { client()->barrier("b", 1, 3, kLong); });
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(error.what(), HasSubstr("rank 2"));
}

TEST_F(StoreTest, TwoProcessesWithOneRankAreAnErrorForAll) {
  std::vector<std::thread> ranks;
  for (int i = 0; i < 2; ++i) {
    ranks.emplace_back([&] {
      const Error error = error_of([&] { client()->barrier("b", 1, 3, kLong); });
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1"), HasSubstr("twice")));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(StoreTest, RanksThatDisagreeOnTheSizeAreToldBoth) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const Error error = error_of([&] { client()->barrier("b", rank, 7 + rank, kLong); });
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("7"), HasSubstr("8")));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(error_of([&] { client()->barrier("c", 3, 3, kLong); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(StoreTest, TheEndOfTheServerEndsEveryWaitAndIsNamed) {
  const auto store = client();
  std::thread waiting([&] {
    const Error error = error_of([&] { store->get("never", kLong); });
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_THAT(error.what(), HasSubstr(to_string(store->endpoint())));
  });
  server_.reset();
  waiting.join();
  EXPECT_EQ(error_of([&] { store->set("key", ""); }).code(), ErrorCode::kPeerLost);
}

TEST_F(StoreTest, CloseEndsCallsOfOtherThreadsAndLaterOnes) {
  const auto store = client();
  std::vector<std::thread> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.emplace_back([&] {
      EXPECT_EQ(error_of([&] { store->get("never", kLong); }).code(), ErrorCode::kCancelled);
    });
  }
  store->close();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(error_of([&] { store->set("key", ""); }).code(), ErrorCode::kCancelled);
}

TEST_F(StoreTest, AnotherTokenOrJobIsRefusedAtOnce) {
  for (const auto& [token, job] : std::vector<std::pair<std::string, std::string>>{
           {random_token(), "job"}, {"", "job"}, {token_, "other"}}) {
    const Error error = error_of([&] { Store(endpoint(), token, job, kLong); });
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("LOCKSTEP_TOKEN"), HasSubstr(to_string(endpoint())),
                                    Not(HasSubstr(token_))));
  }
}

TEST_F(StoreTest, AProofOfOneConnectionIsWorthlessOnAnother) {
  // A stranger who hears a whole handshake and plays the client's part again.
  const std::string hello = concat(kMagic, std::string(32, 'n'));
  const Challenge heard = challenge(hello, token_, "store|job");
  const Fd fd = stranger();
  send(fd, hello);
  std::string answer(kChallengeBytes, '\0');
  read_full(fd, answer.data(), answer.size(), deadline_after(kLong), "test", "the store");
  EXPECT_NE(answer, heard.message);
  send(fd, heard.want);
  expect_dropped(fd);
}

TEST_F(StoreTest, TheServersOwnProofSentBackIsRefused) {
  const Fd fd = stranger();
  send(fd, concat(kMagic, std::string(32, 'n')));
  std::string answer(kChallengeBytes, '\0');
  read_full(fd, answer.data(), answer.size(), deadline_after(kLong), "test", "the store");
  send(fd, std::string_view(answer).substr(kHelloBytes));
  expect_dropped(fd);
}

TEST_F(StoreTest, DropsAStrangersBytesAndGoesOnServing) {
  const auto store = client();
  std::thread waiting([&] { EXPECT_EQ(store->get("key", kLong), "value"); });
  std::string all_bytes;
  for (int i = 0; i < 4096; ++i) all_bytes += static_cast<char>(i * 131 + i / 7);
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\xff'), all_bytes,
        concat(kMagic, std::string(64, '\0')), std::string("\xff\xff\xff\x7f\x01", 5)}) {
    const Fd fd = stranger();
    try {
      send(fd, bytes);
    } catch (const Error&) {
      continue;  // dropped before all was sent
    }
    ::shutdown(fd.get(), SHUT_WR);
    expect_dropped(fd);
  }
  for (int i = 0; i < 50; ++i) stranger();  // a port scan
  store->set("key", "value");
  waiting.join();
}

TEST_F(StoreTest, DropsWhoSaysNothingOrTooLittleButNobodyElse) {
  StoreServer::Options quick = options();
  quick.handshake_timeout = milliseconds(50);
  server_ = std::make_unique<StoreServer>(quick);
  const auto store = client();
  const Fd silent = stranger();
  const Fd slow = stranger();
  send(slow, kMagic.substr(0, 3));
  const Fd half = stranger();
  send(half, concat(kMagic, std::string(32, 'n')));
  expect_dropped(silent);
  expect_dropped(slow);
  expect_dropped(half);
  store->set("key", "value");  // a member may be silent as long as it likes
  EXPECT_EQ(store->get("key", kShort), "value");
}

TEST_F(StoreTest, ManySilentStrangersDoNotKeepARankOut) {
  std::vector<Fd> strangers;
  for (int i = 0; i < 600; ++i) strangers.push_back(stranger());
  client()->set("key", "value");
  EXPECT_EQ(client()->get("key", kLong), "value");
}

TEST_F(StoreTest, AMembersImpossibleLengthCostsOnlyItsConnection) {
  const auto store = client();
  for (const std::string& frame : {std::string("\xff\xff\xff\xff", 4), std::string("\0\0\0\0", 4),
                                   std::string("\1\0\0\0\x63", 5),
                                   // A set whose key claims to be longer than its frame.
                                   std::string("\6\0\0\0\1\xff\xff\0\0k", 10)}) {
    const Fd fd = member();
    send(fd, frame);
    expect_dropped(fd);
  }
  store->set("key", "value");
  EXPECT_EQ(store->get("key", kLong), "value");
}

TEST(StoreConnect, RankZeroServesAndTheOthersComeInAnyOrder) {
  Fd probe = listen_tcp("127.0.0.1", 0, "test");
  World world;
  world.size = 4;
  world.store_port = local_port(probe);
  world.token = "t";
  probe.reset();
  std::vector<std::thread> ranks;
  for (const int rank : {3, 1, 2, 0}) {
    ranks.emplace_back([world, rank]() mutable {
      world.rank = rank;
      const auto store = Store::connect(world, kLong);
      store->set(concat("rank", rank), std::to_string(rank * 3));
      for (int other = 0; other < world.size; ++other) {
        EXPECT_EQ(store->get(concat("rank", other), kLong), std::to_string(other * 3));
      }
      store->barrier("end", rank, world.size, kLong);  // rank 0 must not stop serving before
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(StoreConnect, OneRankNeedsNoPort) {
  const auto store = Store::connect(World{}, kLong);
  EXPECT_GT(store->endpoint().port, 0);
  EXPECT_EQ(store->add("n", 2), 2);
  store->barrier("b", 0, 1, kShort);
}

TEST(StoreConnect, ASecondJobOnThePortIsToldItsNumberAndTheWayOut) {
  const StoreServer other({"127.0.0.1", 0, "another", "job", kLong});
  World world;
  world.size = 2;
  world.store_port = other.port();
  world.token = "t";
  const Error error = error_of([&] { Store::connect(world, kLong); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.what(), AllOf(HasSubstr(std::to_string(other.port())), HasSubstr("in use"),
                                  HasSubstr("another port")));
  world.rank = 1;
  EXPECT_EQ(error_of([&] { Store::connect(world, kLong); }).code(), ErrorCode::kMismatch);
}

TEST(StoreConnect, ARankThatFindsNoStoreEndsAtItsTimeout) {
  Fd probe = listen_tcp("127.0.0.1", 0, "test");
  World world;
  world.rank = 1;
  world.size = 2;
  world.store_port = local_port(probe);
  // Somebody listens there, but never says a word.
  EXPECT_EQ(error_of([&] { Store::connect(world, milliseconds(100)); }).code(),
            ErrorCode::kTimeout);
  probe.reset();
  const Error error = error_of([&] { Store::connect(world, milliseconds(100)); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr(std::to_string(world.store_port)));
}

TEST(StoreConnect, AWorldOfSeveralRanksWithoutAPortIsRefused) {
  World world;
  world.size = 2;
  EXPECT_EQ(error_of([&] { Store::connect(world, kLong); }).code(), ErrorCode::kInvalidArgument);
  world.rank = 2;
  EXPECT_THAT(error_of([&] { Store::connect(world, kLong); }).what(), HasSubstr("rank 2 of 2"));
}

TEST(StoreConnect, AHostedStoreIsNotServedTwice) {
  const StoreServer launcher({"127.0.0.1", 0, "t", "j", kLong});
  World world;
  world.size = 2;
  world.store_port = launcher.port();
  world.store_hosted = true;
  world.token = "t";
  world.job = "j";
  Store::connect(world, kLong)->set("key", "value");
  // The store outlives rank 0, which is why a launcher hosts it.
  world.rank = 1;
  EXPECT_EQ(Store::connect(world, kLong)->get("key", kLong), "value");
}

}  // namespace
}  // namespace lockstep::comm
