// A rank that is killed, at any instant of a large collective: every other rank has an error that
// names it, at once, and nothing is left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

using ::testing::HasSubstr;

// What a surviving rank reports through its pipe before it exits.
struct Report {
  int32_t code = -1;      // ErrorCode; -1: no error
  int64_t failed_at = 0;  // nanoseconds of the steady clock
  std::array<char, 400> message{};
};

int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

// One rank's process: reduces 64 Mi floats again and again until it fails.
[[noreturn]] void run_rank(const Path& path, int rank, int size, int port_pipe, int report_pipe) {
  alarm(60);
  Report report;
  World world{rank, size, rank, size, "127.0.0.1", 0, true, "token", ""};
  if (read(port_pipe, &world.store_port, sizeof world.store_port) != sizeof world.store_port) {
    _exit(2);
  }
  try {
    const Options options = options_of(path, std::chrono::seconds(30));
    const auto comm = connect(world, Store::connect(world, options.timeout), options);
    constexpr int64_t kCount = 64 << 20;  // 256 MiB
    const std::shared_ptr<void> data = comm->allocate(kCount * sizeof(float));
    comm->barrier().wait();
    const char ready = 'r';
    if (write(report_pipe, &ready, 1) != 1) _exit(2);
    for (;;) {
      comm->all_reduce(data.get(), data.get(), kCount, DType::kF32, ReduceOp::kSum).wait();
    }
  } catch (const Error& error) {
    report.code = static_cast<int32_t>(error.code());
    report.failed_at = now_ns();
    const std::string_view what = error.what();
    std::copy_n(what.begin(), std::min(what.size(), report.message.size() - 1),
                report.message.begin());
  }
  _exit(write(report_pipe, &report, sizeof report) == sizeof report ? 0 : 2);
}

struct Process {
  pid_t pid = -1;
  int port_pipe = -1;
  int report_pipe = -1;
};

class Kills : public ::testing::TestWithParam<Path> {};

INSTANTIATE_TEST_SUITE_P(All, Kills,
                         ::testing::Values(Path{"shm", ""}, Path{"shm", "ring"}, Path{"tcp", ""}),
                         [](const ::testing::TestParamInfo<Path>& path) {
                           return path.param.transport + "_" +
                                  (path.param.algorithm.empty() ? "auto" : path.param.algorithm);
                         });

std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

TEST_P(Kills, EveryOtherRankNamesTheRankThatDied) {
  const std::set<std::string> files_before = shared_memory_files();
  std::mt19937 random(20240817);
  for (int round = 0; round < 4; ++round) {
    const int size = 2 + round % 2;
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
    std::vector<Process> ranks(size);
    for (int rank = 0; rank < size; ++rank) {
      int port[2];
      int report[2];
      ASSERT_EQ(pipe(port), 0);
      ASSERT_EQ(pipe(report), 0);
      ranks[rank].pid = fork();
      ASSERT_GE(ranks[rank].pid, 0);
      if (ranks[rank].pid == 0) run_rank(GetParam(), rank, size, port[0], report[1]);
      close(port[0]);
      close(report[1]);
      ranks[rank].port_pipe = port[1];
      ranks[rank].report_pipe = report[0];
    }
    // The store outlives the ranks, so that its end tells them nothing.
    StoreServer server({"127.0.0.1", 0, "token", ""});
    const int port = server.port();
    for (const Process& rank : ranks) {
      ASSERT_EQ(write(rank.port_pipe, &port, sizeof port), static_cast<ssize_t>(sizeof port));
    }
    for (const Process& rank : ranks) {
      char ready = 0;
      ASSERT_EQ(read(rank.report_pipe, &ready, 1), 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 400'000));
    kill(ranks[victim].pid, SIGKILL);
    const int64_t killed_at = now_ns();
    for (int rank = 0; rank < size; ++rank) {
      if (rank != victim) {
        Report report;
        ASSERT_EQ(read(ranks[rank].report_pipe, &report, sizeof report),
                  static_cast<ssize_t>(sizeof report));
        EXPECT_EQ(report.code, static_cast<int32_t>(ErrorCode::kPeerLost));
        EXPECT_THAT(std::string(report.message.data()),
                    HasSubstr("rank " + std::to_string(victim) + " died"));
        // A second is the promise; a loaded machine may not even run the process for as long.
        EXPECT_LT(report.failed_at - killed_at, 10'000'000'000);
      }
      int status = 0;
      ASSERT_EQ(waitpid(ranks[rank].pid, &status, 0), ranks[rank].pid);
      EXPECT_TRUE(rank == victim ? WIFSIGNALED(status) : status == 0);
      close(ranks[rank].port_pipe);
      close(ranks[rank].report_pipe);
    }
  }
  EXPECT_EQ(shared_memory_files(), files_before);
}

}  // namespace
}  // namespace lockstep::comm
