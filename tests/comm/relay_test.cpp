// Ranks whose TCP connections are slow, cut, half-open or truncated: right results or an error by
// name, and never a hang.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"
#include "relay.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::ContainsRegex;

// What a rank ended with; nothing where all went well.
struct Ending {
  std::string what;
  ErrorCode code = ErrorCode::kInternal;
};

class Relays : public testing::Test {
 protected:
  // Runs fn as each of n ranks over tcp, through relays.
  std::vector<Ending> run(int n, Network& network, milliseconds timeout,
                          const std::function<void(Communicator&)>& fn) {
    std::vector<Ending> endings(static_cast<size_t>(n));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < n; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          const World world{rank, n, rank, n, "127.0.0.1", network.store_port(), true, "t", "j"};
          Options options;
          options.transport = "tcp";
          options.timeout = timeout;
          const auto comm =
              connect(world, Store::connect(world, std::chrono::seconds(60)), options);
          fn(*comm);
        } catch (const Error& error) {
          endings[static_cast<size_t>(rank)] = {error.what(), error.code()};
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return endings;
  }

  // One sum after another, each of which is looked at.
  static void sum(Communicator& comm, int64_t count, int rounds) {
    std::vector<float> data(static_cast<size_t>(count));
    for (int round = 0; round < rounds; ++round) {
      for (int64_t i = 0; i < count; ++i) {
        data[static_cast<size_t>(i)] = static_cast<float>((comm.rank() + 1) * (i % 31 + round + 1));
      }
      comm.all_reduce(data.data(), data.data(), count, DType::kF32, ReduceOp::kSum).wait();
      const int ranks = comm.size() * (comm.size() + 1) / 2;
      for (int64_t i = 0; i < count; i += 97) {
        ASSERT_EQ(data[static_cast<size_t>(i)], static_cast<float>(ranks * (i % 31 + round + 1)));
      }
    }
  }

  StoreServer server_{{"127.0.0.1", 0, "t", "j"}};
};

TEST_F(Relays, ADelayChangesNoResult) {
  Network network(server_.port(), {Fault::kNone, 0, std::chrono::microseconds(700)});
  const auto endings = run(3, network, std::chrono::seconds(60), [](Communicator& comm) {
    sum(comm, 1, 5);
    sum(comm, 200003, 2);
  });
  for (const Ending& ending : endings) EXPECT_EQ(ending.what, "");
  EXPECT_GE(network.relays(), 3u);  // else the ranks did not go through them
}

struct Case {
  std::string name;
  Fault fault;
  ErrorCode code;
};

class Faults : public Relays, public testing::WithParamInterface<Case> {};

INSTANTIATE_TEST_SUITE_P(All, Faults,
                         testing::Values(Case{"cut", Fault::kCut, ErrorCode::kPeerLost},
                                         Case{"half_open", Fault::kHalfOpen, ErrorCode::kTimeout},
                                         Case{"truncated", Fault::kTruncate, ErrorCode::kPeerLost}),
                         [](const auto& fault) { return fault.param.name; });

TEST_P(Faults, InACollectiveAreAnErrorOnEveryRankThatNamesOne) {
  for (const int64_t after :
       {int64_t{0}, int64_t{7}, int64_t{33}, int64_t{5001}, int64_t{300007}}) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(concat(ranks, " ranks, after ", after, " bytes"));
      const StoreServer server({"127.0.0.1", 0, "t", "j"});
      Network network(server.port(), {GetParam().fault, after});
      const Deadline start = Clock::now();
      const auto endings = run(ranks, network, milliseconds(1500), [&](Communicator& comm) {
        sum(comm, 1009, 2);
        comm.barrier().wait();
        network.arm();
        sum(comm, 400009, 1000);
      });
      for (const Ending& ending : endings) {
        EXPECT_TRUE(ending.code == GetParam().code || ending.code == ErrorCode::kPeerLost ||
                    ending.code == ErrorCode::kTimeout)
            << ending.what;
        EXPECT_THAT(ending.what, ContainsRegex("ranks? [0-9]"));
      }
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(60));
    }
  }
}

TEST_P(Faults, WhileAGroupIsMadeAreAnErrorOnEveryRankThatNamesOne) {
  for (const int64_t after : {0, 5, 40, 72, 100, 110}) {
    SCOPED_TRACE(concat("after ", after, " bytes"));
    const StoreServer server({"127.0.0.1", 0, "t", "j"});
    Network network(server.port(), {GetParam().fault, after});
    network.arm();
    const Deadline start = Clock::now();
    const auto endings =
        run(3, network, milliseconds(1500), [&](Communicator& comm) { sum(comm, 20011, 1000); });
    for (const Ending& ending : endings) EXPECT_THAT(ending.what, ContainsRegex("ranks? [0-9]"));
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(60));
  }
}

}  // namespace
}  // namespace lockstep::comm
