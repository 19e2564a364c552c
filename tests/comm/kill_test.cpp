// Ranks that are killed or stopped at a random instant of making a group, of any collective or of
// messages, at any size, over any transport, whoever hosts the store: every other rank has an error
// that names them, at once for a death and at the timeout for a stop; no result is wrong and
// nothing is left.
//
// LOCKSTEP_KILLS says how many kills (25); `make check` does 500.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <regex>
#include <thread>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/text.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

// One job, and what is done to one of its ranks.
struct Plan {
  Path path;
  int size = 2;
  int victim = 0;
  bool hosted = true;  // the store is this process's; else rank 0's
  bool early = false;  // while the group is made, else in a collective
  int signal = SIGKILL;
  size_t call = 0;  // in kCalls
  int64_t count = 1;
  bool registered = true;  // buffers are the communicator's own
  std::chrono::microseconds delay{0};
  milliseconds timeout{30'000};
};

// What a rank tells this process through its pipe: 's' once it has found the store, 'r' once the
// group is made, and 'e' with the error that ended it.
struct Report {
  char what = 's';
  int32_t code = -1;
  int32_t wrong = 0;      // elements that were wrong, of those that were looked at
  int64_t failed_at = 0;  // nanoseconds of the steady clock
  std::array<char, 600> message{};
};

// Floats whose sums are exact.
float input(int rank, int64_t i) { return static_cast<float>((rank + 1) * (i % 31 + 1)); }

struct Buffers {
  std::shared_ptr<void> send_owner, recv_owner;
  float* send;
  float* recv;
  int64_t count;
};

constexpr float kUnset = -1;

// Looks at about a hundred elements, and makes them unset for the next round.
template <class Want>
int wrong_elements(float* data, int64_t elements, const Want& want) {
  int wrong = 0;
  const int64_t step = std::max<int64_t>(1, elements / 101);
  for (int64_t i = 0; i < elements; i += step) {
    wrong += data[i] != want(i) ? 1 : 0;
    data[i] = kUnset;
  }
  return wrong;
}

float sum_of_inputs(int ranks, int64_t i) {
  return static_cast<float>(ranks * (ranks + 1) / 2) * input(0, i);
}

// A collective, and how many elements of its result are wrong.
using Call = int (*)(Communicator& comm, const Buffers& buffers);
constexpr std::array<Call, 10> kCalls = {
    [](Communicator& comm, const Buffers& b) {
      comm.all_reduce(b.send, b.recv, b.count, DType::kF32, ReduceOp::kSum).wait();
      return wrong_elements(b.recv, b.count,
                            [&](int64_t i) { return sum_of_inputs(comm.size(), i); });
    },
    [](Communicator& comm, const Buffers& b) {
      comm.reduce_scatter(b.send, b.recv, b.count, DType::kF32, ReduceOp::kSum).wait();
      return wrong_elements(b.recv, b.count, [&](int64_t i) {
        return sum_of_inputs(comm.size(), comm.rank() * b.count + i);
      });
    },
    [](Communicator& comm, const Buffers& b) {
      comm.all_gather(b.send, b.recv, b.count, DType::kF32).wait();
      return wrong_elements(b.recv, b.count * comm.size(), [&](int64_t i) {
        return input(static_cast<int>(i / b.count), i % b.count);
      });
    },
    [](Communicator& comm, const Buffers& b) {
      const int root = comm.size() - 1;
      float* data = comm.rank() == root ? b.send : b.recv;
      comm.broadcast(data, b.count, DType::kF32, root).wait();
      if (comm.rank() == root) return 0;
      return wrong_elements(data, b.count, [&](int64_t i) { return input(root, i); });
    },
    [](Communicator& comm, const Buffers&) {
      comm.barrier().wait();
      return 0;
    },
    [](Communicator& comm, const Buffers& b) {
      comm.reduce(b.send, b.recv, b.count, DType::kF32, ReduceOp::kSum, 0).wait();
      if (comm.rank() != 0) return 0;
      return wrong_elements(b.recv, b.count,
                            [&](int64_t i) { return sum_of_inputs(comm.size(), i); });
    },
    [](Communicator& comm, const Buffers& b) {
      comm.gather(b.send, b.recv, b.count, DType::kF32, 0).wait();
      if (comm.rank() != 0) return 0;
      return wrong_elements(b.recv, b.count * comm.size(), [&](int64_t i) {
        return input(static_cast<int>(i / b.count), i % b.count);
      });
    },
    [](Communicator& comm, const Buffers& b) {
      comm.scatter(b.send, b.recv, b.count, DType::kF32, 0).wait();
      return wrong_elements(b.recv, b.count,
                            [&](int64_t i) { return input(0, comm.rank() * b.count + i); });
    },
    [](Communicator& comm, const Buffers& b) {
      comm.all_to_all(b.send, b.recv, b.count, DType::kF32).wait();
      return wrong_elements(b.recv, b.count * comm.size(), [&](int64_t i) {
        return input(static_cast<int>(i / b.count), comm.rank() * b.count + i % b.count);
      });
    },
    // A message from every rank to every other.
    [](Communicator& comm, const Buffers& b) {
      std::vector<Work> messages;
      for (int peer = 0; peer < comm.size(); ++peer) {
        if (peer == comm.rank()) continue;
        messages.push_back(comm.send(b.send, b.count, DType::kF32, peer));
        messages.push_back(comm.recv(b.recv + peer * b.count, b.count, DType::kF32, peer));
      }
      for (Work& message : messages) message.wait();
      int wrong = 0;
      for (int peer = 0; peer < comm.size(); ++peer) {
        if (peer == comm.rank()) continue;
        wrong += wrong_elements(b.recv + peer * b.count, b.count,
                                [&](int64_t i) { return input(peer, i); });
      }
      return wrong;
    },
};

Buffers make_buffers(Communicator& comm, const Plan& plan) {
  const auto elements = static_cast<size_t>(plan.count) * static_cast<size_t>(plan.size);
  const auto allocate = [&]() -> std::shared_ptr<void> {
    if (plan.registered) return comm.allocate(elements * sizeof(float));
    return {std::calloc(elements, sizeof(float)), std::free};
  };
  Buffers out{allocate(), allocate(), nullptr, nullptr, plan.count};
  out.send = static_cast<float*>(out.send_owner.get());
  out.recv = static_cast<float*>(out.recv_owner.get());
  for (size_t i = 0; i < elements; ++i) {
    out.send[i] = input(comm.rank(), static_cast<int64_t>(i));
  }
  return out;
}

void tell(int pipe, const Report& report) {
  if (write(pipe, &report, sizeof report) != sizeof report) _exit(2);
}

// One rank's process: the same collective again and again until it fails.
[[noreturn]] void run_rank(const Plan& plan, int rank, int port_pipe, int report_pipe) {
  alarm(100);
  Report report;
  World world{rank, plan.size, rank, plan.size, "127.0.0.1", 0, plan.hosted, "token", ""};
  if (read(port_pipe, &world.store_port, sizeof world.store_port) != sizeof world.store_port) {
    _exit(3);
  }
  try {
    const auto store = Store::connect(world, plan.timeout);
    tell(report_pipe, report);
    const auto comm = connect(world, store, options_of(plan.path, plan.timeout));
    const Buffers buffers = make_buffers(*comm, plan);
    comm->barrier().wait();
    report.what = 'r';
    tell(report_pipe, report);
    for (;;) report.wrong += kCalls[plan.call](*comm, buffers);
  } catch (const Error& error) {
    report.what = 'e';
    report.code = static_cast<int32_t>(error.code());
    report.failed_at = now_ns();
    std::string(error.what()).copy(report.message.data(), report.message.size() - 1);
  }
  tell(report_pipe, report);
  _exit(0);
}

// Whether a message speaks of the rank, alone ("rank 2") or in a list ("ranks 0, 2-4").
bool names_rank(const std::string& message, int rank) {
  static const std::regex kList("ranks? ([0-9]+(?:-[0-9]+)?(?:, [0-9]+(?:-[0-9]+)?)*)");
  static const std::regex kPart("([0-9]+)(?:-([0-9]+))?");
  const std::sregex_iterator end;
  for (std::sregex_iterator list(message.begin(), message.end(), kList); list != end; ++list) {
    const std::string ranks = (*list)[1];
    for (std::sregex_iterator part(ranks.begin(), ranks.end(), kPart); part != end; ++part) {
      const int first = std::stoi((*part)[1]);
      const int last = (*part)[2].matched ? std::stoi((*part)[2]) : first;
      if (first <= rank && rank <= last) return true;
    }
  }
  return false;
}

TEST(KillsMessages, NameARankAloneOrInAList) {
  EXPECT_TRUE(names_rank("rank 2 died", 2));
  EXPECT_TRUE(names_rank("waited 3 s for ranks 0, 2-4; rank 6 is there", 3));
  EXPECT_TRUE(names_rank("waited 3 s for ranks 0, 2-4; rank 6 is there", 6));
  EXPECT_FALSE(names_rank("waited 3 s for ranks 0, 2-4; rank 6 is there", 5));
  EXPECT_FALSE(names_rank("rank 12 died after 2 calls", 2));
}

struct Process {
  pid_t pid = -1;
  int port_pipe = -1;
  int report_pipe = -1;
  Report last{};

  // Waits for a report of a kind; 0 where the process ends without one.
  char wait_for(char what) {
    while (last.what != what) {
      if (read(report_pipe, &last, sizeof last) != static_cast<ssize_t>(sizeof last)) return 0;
      if (last.what == 'e') break;
    }
    return last.what;
  }
};

Process start(const Plan& plan, int rank) {
  int port[2];
  int report[2];
  EXPECT_EQ(pipe(port), 0);
  EXPECT_EQ(pipe(report), 0);
  Process process;
  process.last.what = 0;
  process.pid = fork();
  EXPECT_GE(process.pid, 0);
  if (process.pid == 0) {
    close(port[1]);
    close(report[0]);
    run_rank(plan, rank, port[0], report[1]);
  }
  close(port[0]);
  close(report[1]);
  process.port_pipe = port[1];
  process.report_pipe = report[0];
  return process;
}

// Kills or stops the plan's victim; returns by how many seconds the last of the others knew.
double carry_out(const Plan& plan) {
  std::vector<Process> ranks;
  for (int rank = 0; rank < plan.size; ++rank) ranks.push_back(start(plan, rank));
  // After the forks: it has a thread.
  std::unique_ptr<StoreServer> server;
  int port = 0;
  if (plan.hosted) {
    server = std::make_unique<StoreServer>(StoreServer::Options{"127.0.0.1", 0, "token", ""});
    port = server->port();
  } else {
    port = local_port(listen_tcp("127.0.0.1", 0, "test"));
  }
  for (const Process& rank : ranks) {
    EXPECT_EQ(write(rank.port_pipe, &port, sizeof port), static_cast<ssize_t>(sizeof port));
  }
  Process& victim = ranks[plan.victim];
  if (plan.early) {
    EXPECT_EQ(victim.wait_for('s'), 's') << victim.last.message.data();
  } else {
    for (Process& rank : ranks) EXPECT_EQ(rank.wait_for('r'), 'r') << rank.last.message.data();
  }
  std::this_thread::sleep_for(plan.delay);
  kill(victim.pid, plan.signal);
  const int64_t killed_at = now_ns();
  double latest = 0;
  for (int rank = 0; rank < plan.size; ++rank) {
    if (rank == plan.victim) continue;
    EXPECT_EQ(ranks[rank].wait_for('e'), 'e') << "rank " << rank << " ended without an error";
    const Report& report = ranks[rank].last;
    const auto code = static_cast<ErrorCode>(report.code);
    // One that dies before it has come to the group is one that does not come.
    const bool late = plan.signal == SIGSTOP || plan.early;
    EXPECT_TRUE(code == (plan.signal == SIGSTOP ? ErrorCode::kTimeout : ErrorCode::kPeerLost) ||
                (late && code == ErrorCode::kTimeout))
        << report.message.data();
    // Rank 0 that gives up takes its store along, for those who have not even found it.
    const std::string message = report.message.data();
    const bool store_is_gone =
        plan.early && !plan.hosted && message.find("the store of rank 0") != message.npos;
    EXPECT_TRUE(store_is_gone || names_rank(message, plan.victim)) << message;
    EXPECT_EQ(report.wrong, 0) << "elements were wrong on rank " << rank;
    latest = std::max(latest, static_cast<double>(report.failed_at - killed_at) / 1e9);
  }
  kill(victim.pid, SIGKILL);
  for (int rank = 0; rank < plan.size; ++rank) {
    int status = 0;
    EXPECT_EQ(waitpid(ranks[rank].pid, &status, 0), ranks[rank].pid);
    EXPECT_TRUE(rank == plan.victim ? WIFSIGNALED(status) : status == 0)
        << "rank " << rank << " ended with " << status;
    close(ranks[rank].port_pipe);
    close(ranks[rank].report_pipe);
  }
  return latest;
}

std::string text_of(const Plan& plan) {
  return concat(plan.path.transport, "/",
                plan.path.algorithm.empty() ? "auto" : plan.path.algorithm, ", ", plan.size,
                " ranks, rank ", plan.victim, " gets signal ", plan.signal,
                plan.early ? " early" : "", " after ", plan.delay.count(), " us, call ", plan.call,
                " of ", plan.count, plan.registered ? " registered" : " plain", ", store of ",
                plan.hosted ? "the launcher" : "rank 0");
}

class Kills : public ::testing::Test {
 protected:
  Plan random_plan() {
    const std::vector<Path> paths = {{"shm", ""},         {"shm", "ring"}, {"shm", "two_shot"},
                                     {"shm", "one_shot"}, {"tcp", ""},     {"tcp", "ring"},
                                     {"tcp", "one_shot"}, {"mixed", ""}};
    constexpr std::array<int64_t, 6> kCounts = {1, 33, 1009, 20011, 300007, 2000003};
    Plan plan;
    plan.path = paths[below(paths.size())];
    plan.size = 2 + static_cast<int>(below(4));
    plan.victim = static_cast<int>(below(static_cast<size_t>(plan.size)));
    plan.hosted = below(2) == 0;
    plan.call = below(kCalls.size());
    plan.count = kCounts[below(kCounts.size())];
    plan.registered = below(2) == 0;
    plan.delay = std::chrono::microseconds(below(30'000));
    return plan;
  }
  size_t below(size_t bound) { return random_() % bound; }

  // Nothing of the library's is left in the file system, and no process.
  static void expect_nothing_left() {
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      EXPECT_EQ(entry.path().string().find("lockstep"), std::string::npos) << entry.path();
    }
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

  static int kills() {
    const char* wanted = std::getenv("LOCKSTEP_KILLS");
    return wanted != nullptr ? std::atoi(wanted) : 25;
  }

  static void say(const char* what, std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    const auto within = std::upper_bound(seconds.begin(), seconds.end(), 1.0) - seconds.begin();
    std::printf(
        "%s: %zu; all others had the error after %.3f s (median), %.3f s (latest), %td of "
        "them within 1 s\n",
        what, seconds.size(), seconds[seconds.size() / 2], seconds.back(), within);
  }

  std::mt19937 random_{20240817};
};

TEST_F(Kills, InACollectiveEveryOtherRankNamesTheRankThatDied) {
  std::vector<double> seconds;
  for (int i = 0; i < kills(); ++i) {
    const Plan plan = random_plan();
    SCOPED_TRACE(text_of(plan));
    seconds.push_back(carry_out(plan));
    // A second is the promise; a loaded machine may not even run the process for as long.
    EXPECT_LT(seconds.back(), 60);
    if (seconds.back() > 1) std::printf("%.3f s: %s\n", seconds.back(), text_of(plan).c_str());
    if (HasFailure()) return;
  }
  say("kills in collectives", seconds);
  expect_nothing_left();
}

TEST_F(Kills, WhileAGroupIsMadeEveryOtherRankNamesTheRankThatDied) {
  std::vector<double> seconds;
  for (int i = 0; i < (kills() + 2) / 3; ++i) {
    Plan plan = random_plan();
    plan.early = true;
    plan.delay = std::chrono::microseconds(below(8000));
    plan.timeout = milliseconds(5000);
    SCOPED_TRACE(text_of(plan));
    seconds.push_back(carry_out(plan));
    EXPECT_LT(seconds.back(), 60);
    if (HasFailure()) return;
  }
  say("kills while a group is made", seconds);
  expect_nothing_left();
}

TEST_F(Kills, AStoppedRankIsNamedByEveryOtherAtTheTimeout) {
  std::vector<double> seconds;
  for (int i = 0; i < (kills() + 4) / 5; ++i) {
    Plan plan = random_plan();
    plan.signal = SIGSTOP;
    plan.timeout = milliseconds(3000);
    SCOPED_TRACE(text_of(plan));
    seconds.push_back(carry_out(plan));
    EXPECT_GT(seconds.back(), 2.5);
    EXPECT_LT(seconds.back(), 60);
    if (HasFailure()) return;
  }
  say("stops, with a timeout of 3 s", seconds);
  expect_nothing_left();
}

}  // namespace
}  // namespace lockstep::comm
