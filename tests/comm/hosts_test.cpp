// Ranks on several hosts: network namespaces joined by a link whose rate tc bounds, and ranks of
// one machine that are told apart by name.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "collective_cases.h"
#include "lockstep/comm/auth.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/store.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

// Empty where the command succeeds, else the command and what it said.
std::string failure_of(const std::string& command) {
  FILE* out = popen((command + " 2>&1").c_str(), "r");
  if (out == nullptr) return command + ": it could not be started";
  std::string said;
  for (int c = std::fgetc(out); c != EOF; c = std::fgetc(out)) said += static_cast<char>(c);
  return pclose(out) == 0 ? "" : command + ": " + said;
}

// Two hosts, "a" and "b", each a network namespace, and a link between them with IPv4 and IPv6.
class TwoHosts {
 public:
  TwoHosts() : name_("lockstep" + std::to_string(getpid())) {
    const std::string a = name_ + "a";
    const std::string b = name_ + "b";
    run("ip netns add " + a);
    run("ip netns add " + b);
    run("ip link add link0 netns " + a + " type veth peer name link0 netns " + b);
    for (int host = 0; host < 2; ++host) {
      const std::string in = " -n " + name_ + (host == 0 ? "a" : "b");
      const std::string number = std::to_string(host + 1);
      run("ip" + in + " addr add 10.77.0." + number + "/24 dev link0");
      run("ip" + in + " addr add fd77::" + number + "/64 dev link0 nodad");
      run("ip" + in + " link set link0 up");
      run("ip" + in + " link set lo up");
      run("tc" + in + " qdisc add dev link0 root tbf rate 4gbit burst 2mb latency 50ms");
    }
  }
  ~TwoHosts() {
    failure_of("ip netns del " + name_ + "a");
    failure_of("ip netns del " + name_ + "b");
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  // Of the first command that failed.
  const std::string& failure() const { return failure_; }
  bool is_forbidden() const {
    return failure_.find("Operation not permitted") != std::string::npos ||
           failure_.find("Permission denied") != std::string::npos;
  }

  // Moves this process to a host.
  void enter(int host) const {
    const std::string path = "/run/netns/" + name_ + (host == 0 ? "a" : "b");
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) std::_Exit(90);
    close(fd);
  }

 private:
  void run(const std::string& command) {
    if (failure_.empty()) failure_ = failure_of(command);
  }

  std::string name_;
  std::string failure_;
};

// Bytes that this process's host has sent over the link.
int64_t bytes_sent() {
  std::ifstream table("/proc/self/net/dev");
  for (std::string line; std::getline(table, line);) {
    long long received = 0;
    long long sent = 0;
    if (std::sscanf(line.c_str(), " link0: %lld %*d %*d %*d %*d %*d %*d %*d %lld", &received,
                    &sent) == 2) {
      return sent;
    }
  }
  return -1;
}

// Runs fn as each rank in a process of its own, on host_of(rank); the number that failed.
int failed_ranks(int size, const TwoHosts& hosts, const std::function<int(int)>& host_of,
                 const std::string& store_host, const std::function<void(Communicator&)>& fn) {
  const std::string token = random_token();
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      hosts.enter(host_of(rank));
      int status = 0;
      try {
        // A port of the hosts' own network: nothing else is there.
        const World world{rank, size, rank, size, store_host, 29500, false, token, ""};
        Options options;
        options.timeout = std::chrono::seconds(60);
        const auto store = Store::connect(world, options.timeout);
        const auto comm = connect(world, store, options);
        fn(*comm);
        if (::testing::Test::HasFailure()) status = 1;
        comm->barrier().wait();
        if (rank != 0) std::_Exit(status);
        std::this_thread::sleep_for(std::chrono::milliseconds(200));  // others read the store last
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        status = 2;
      }
      std::_Exit(status);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed += status != 0;
  }
  return failed;
}

// All collectives' bits, for every rank alike.
void check_bits(Communicator& comm) {
  for (const int64_t count : {3, 2003, 400009}) {
    for (const DType dtype : {DType::kF32, DType::kF16}) {
      const Bytes want = folded_inputs(dtype, ReduceOp::kSum, Blocks::of_all(count, comm.size()));
      Bytes data = input_of(dtype, comm.rank(), count);
      comm.all_reduce(data.data(), data.data(), count, dtype, ReduceOp::kSum).wait();
      EXPECT_EQ(data == want, true) << count << " " << name(dtype);
    }
    Bytes all(static_cast<size_t>(count * comm.size()) * 4);
    const Bytes own = input_of(DType::kI32, comm.rank(), count);
    comm.all_gather(own.data(), all.data(), count, DType::kI32).wait();
    for (int rank = 0; rank < comm.size(); ++rank) {
      const Bytes part = input_of(DType::kI32, rank, count);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + rank * count * 4));
    }
    Bytes data = input_of(DType::kI32, comm.rank(), count);
    comm.broadcast(data.data(), count, DType::kI32, comm.size() - 1).wait();
    EXPECT_EQ(data == input_of(DType::kI32, comm.size() - 1, count), true);
  }
}

class Hosts : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (hosts_.is_forbidden()) {
      GTEST_SKIP() << "this system does not let us make network namespaces: " << hosts_.failure();
    }
    ASSERT_EQ(hosts_.failure(), "");
  }
  TwoHosts hosts_;
};

INSTANTIATE_TEST_SUITE_P(Families, Hosts, ::testing::Values("10.77.0.1", "fd77::1"),
                         [](const auto& of) {
                           return of.param[0] == 'f' ? std::string("IPv6") : std::string("IPv4");
                         });

TEST_P(Hosts, OneRankEachTalksTcp) {
  const int failed = failed_ranks(
      2, hosts_, [](int rank) { return rank; }, GetParam(),
      [](Communicator& comm) {
        EXPECT_EQ(comm.transport(), "tcp");
        check_bits(comm);
      });
  EXPECT_EQ(failed, 0);
}

TEST_P(Hosts, TwoRanksEachShareMemoryAndSendEachChunkOnce) {
  const int failed = failed_ranks(
      4, hosts_, [](int rank) { return rank / 2; }, GetParam(),
      [](Communicator& comm) {
        EXPECT_EQ(comm.transport(), "mixed");
        check_bits(comm);
        // A ring whose inner hops are memory: 2 (n - 1) / n of the buffer leave each host, once.
        constexpr int64_t kCount = 6000000;
        std::vector<float> data(kCount, 1.0f);
        comm.barrier().wait();
        const int64_t before = bytes_sent();
        comm.barrier().wait();
        comm.all_reduce(data.data(), data.data(), kCount, DType::kF32, ReduceOp::kSum).wait();
        comm.barrier().wait();
        const int64_t sent = bytes_sent() - before;
        comm.barrier().wait();
        EXPECT_EQ(data.back(), 4.0f);
        EXPECT_GE(before, 0);
        EXPECT_GE(sent, kCount * 4 * 3 / 2);
        EXPECT_LE(sent, kCount * 4 * 7 / 4);
      });
  EXPECT_EQ(failed, 0);
}

TEST_P(Hosts, RanksDealtOutInTurnGiveTheSameBits) {
  const int failed = failed_ranks(
      4, hosts_, [](int rank) { return rank % 2; }, GetParam(),
      [](Communicator& comm) {
        EXPECT_EQ(comm.transport(), "mixed");
        check_bits(comm);
      });
  EXPECT_EQ(failed, 0);
}

// Runs fn as ranks that are threads of this process, on hosts of these names.
void on_named_hosts(const std::vector<std::string>& names, const std::string& algorithm,
                    const std::function<void(Communicator&)>& fn) {
  const std::string token = random_token();
  StoreServer server({"127.0.0.1", 0, token, ""});
  const auto size = static_cast<int>(names.size());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      const World world{rank, size, rank, size, "127.0.0.1", server.port(), true, token, ""};
      Options options = options_of({"", algorithm});
      options.host = names[rank];
      try {
        const auto comm = connect(world, Store::connect(world, options.timeout), options);
        fn(*comm);
        comm->barrier().wait();
      } catch (const Error& error) {
        // Every rank says the same.
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_NE(std::string(error.what()).find("has ring and one_shot"), std::string::npos)
            << error.what();
        EXPECT_EQ(algorithm, "two_shot");
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(NamedHosts, DecideTheTransport) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"x", "x", "x"}, "shm"},
      {{"x", "x", "y"}, "mixed"},
      {{"x", "y", "y", "x"}, "mixed"},
      {{"x", "y", "z"}, "tcp"}};
  for (const auto& [names, want] : cases) {
    on_named_hosts(names, "", [&want = want](Communicator& comm) {
      EXPECT_EQ(comm.transport(), want);
      check_bits(comm);
    });
  }
}

TEST(NamedHosts, AnAlgorithmThatTheTransportHasNotIsAnErrorThatListsThose) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"x", "y"}, std::vector<std::string>{"x", "x", "y"}}) {
    on_named_hosts(names, "two_shot", [](Communicator&) { ADD_FAILURE(); });
  }
}

TEST(NamedHosts, AnyNumberOfSocketsGivesTheSameBits) {
  for (const char* sockets : {"1", "3", "16"}) {
    setenv("LOCKSTEP_SOCKETS", sockets, 1);
    on_named_hosts({"x", "y", "z"}, "ring", check_bits);
  }
  unsetenv("LOCKSTEP_SOCKETS");
}

}  // namespace
}  // namespace lockstep::comm
