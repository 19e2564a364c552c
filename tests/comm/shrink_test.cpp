// What is left of a group goes on: after ranks left, were killed, or do not come.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "lockstep/comm/communicator.h"
#include "on_transports.h"

namespace lockstep::comm {
namespace {

using ::testing::HasSubstr;

class Shrinks : public OnTransports {};
INSTANTIATE_TEST_SUITE_P(All, Shrinks, kTransports, transport_name);

void fails(Communicator& group) {
  EXPECT_THROW(
      {
        group.barrier().wait();
        group.barrier().wait();
      },
      Error);
}

TEST_P(Shrinks, ThoseWhoAreLeftGoOnEachTimeThatOneLeaves) {
  on_ranks(4, [](Communicator& world) {
    EXPECT_EQ(members(world), 1111);
    if (world.rank() == 1) return;
    fails(world);
    auto three = world.shrink();
    EXPECT_EQ(three->size(), 3);
    EXPECT_EQ(three->transport(), GetParam());
    EXPECT_EQ(members(*three), 1101);
    // The first, at whose place they have met, leaves too.
    const int rank = world.rank();
    if (rank == 0) return;
    fails(*three);
    const auto two = three->shrink();
    EXPECT_EQ(two->rank(), rank - 2);
    EXPECT_EQ(members(*two), 1100);
    const auto again = two->duplicate();
    EXPECT_EQ(members(*again), 1100);
  });
}

TEST_P(Shrinks, AfterAnAbortOnEveryRankAllAreThereAgain) {
  on_ranks(3, [](Communicator& world) {
    const auto group = world.split(world.rank() == 0 ? 0 : 1);
    group->abort("once more");
    const auto again = group->shrink();
    EXPECT_EQ(members(*again), world.rank() == 0 ? 1 : 110);
    EXPECT_EQ(members(world), 111);
  });
}

TEST_P(Shrinks, ARankThatDoesNotComeIsLeftOutAndToldSo) {
  std::atomic<int> gone_on{0};
  on_ranks(3, [&](Communicator& world) {
    world.abort("enough");
    if (world.rank() != 1) {
      const auto two = world.shrink(std::chrono::milliseconds(500));
      EXPECT_EQ(members(*two), 101);
      ++gone_on;
      while (gone_on.load() < 3) std::this_thread::yield();
      return;
    }
    while (gone_on.load() < 2) std::this_thread::yield();
    try {
      world.shrink(std::chrono::milliseconds(500));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 came after the others"));
    }
    ++gone_on;
  });
}

// One rank's process: reduces until a rank dies, and goes on with the others.
[[noreturn]] void run_rank(const std::string& transport, int rank, int size, int port,
                           int64_t want) {
  alarm(60);
  try {
    const World world{rank, size, rank, size, "127.0.0.1", port, false, "token", ""};
    const Options options = options_of({transport, ""}, std::chrono::seconds(30));
    const auto comm = connect(world, Store::connect(world, options.timeout), options);
    std::vector<float> data(1 << 20);
    try {
      for (;;) {
        comm->all_reduce(data.data(), data.data(), 1 << 20, DType::kF32, ReduceOp::kMax).wait();
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kPeerLost) _exit(3);
    }
    const auto left = comm->shrink();
    if (members(*left) != want || members(*left->duplicate()) != want) _exit(4);
    _exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  }
  _exit(5);
}

TEST(Shrinks, SurvivorsGoOnWhoeverWasKilled) {
  for (const char* transport : {"shm", "tcp"}) {
    // Rank 0 holds the job's store.
    for (const int victim : {0, 2}) {
      int port = 0;
      { port = StoreServer({"127.0.0.1", 0, "", ""}).port(); }
      const int64_t want = victim == 0 ? 110 : 11;
      std::vector<pid_t> ranks;
      for (int rank = 0; rank < 3; ++rank) {
        const pid_t pid = fork();
        ASSERT_GE(pid, 0);
        if (pid == 0) run_rank(transport, rank, 3, port, want);
        ranks.push_back(pid);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      kill(ranks[victim], SIGKILL);
      for (int rank = 0; rank < 3; ++rank) {
        int status = 0;
        ASSERT_EQ(waitpid(ranks[rank], &status, 0), ranks[rank]);
        if (rank == victim) {
          EXPECT_TRUE(WIFSIGNALED(status)) << "rank " << rank << " ended by itself";
        } else {
          EXPECT_EQ(status, 0) << transport << ": rank " << rank << " without " << victim;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
