// `lockstep run` on several hosts, all of them this one: a launcher for each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "launched.h"
#include "lockstep/comm/socket.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep {
namespace {

using comm::concat;
using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// Free, and not of the range from which the system gives connections and port 0 their ports: those
// of tests beside this one would take it before the launcher does.
int free_port() {
  int least_given = 32768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> least_given;
  std::mt19937 random{std::random_device()()};
  while (true) {
    const int port = std::uniform_int_distribution(10000, std::max(10000, least_given - 1))(random);
    try {
      return comm::local_port(comm::listen_tcp("127.0.0.1", port, "test"));
    } catch (const Error&) {
      // Somebody has it.
    }
  }
}

const std::vector<std::pair<std::string, std::string>> kToken = {
    {"LOCKSTEP_TOKEN", "a secret of this test"}};

// The launcher of one of `nodes` hosts.
std::vector<std::string> node(int number, int nodes, int port, int ranks,
                              const std::vector<std::string>& rest) {
  std::vector<std::string> out{"run",
                               "-n",
                               std::to_string(ranks),
                               "--nnodes",
                               std::to_string(nodes),
                               "--node-rank",
                               std::to_string(number),
                               "--rendezvous",
                               concat("127.0.0.1:", port)};
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

TEST(Hosts, RanksAreNumberedHostByHostAndFormOneGroup) {
  const int port = free_port();
  const std::vector<std::string> program{GROUP_RANK, "reduce"};
  // The first host last: the others wait for it.
  Launched second(node(1, 2, port, 2, program), {.environment = kToken});
  Launched first(node(0, 2, port, 1, program), {.environment = kToken});
  EXPECT_EQ(first.finish(), 0) << first.err;
  EXPECT_EQ(second.finish(), 0) << second.err;
  EXPECT_THAT(lines(first.out), UnorderedElementsAre("[0] rank 0 of 3: sum 6 over shm"));
  EXPECT_THAT(lines(second.out), UnorderedElementsAre("[1] rank 1 of 3: sum 6 over shm",
                                                      "[2] rank 2 of 3: sum 6 over shm"));
}

TEST(Hosts, EachRankFindsItsPlaceInTheWorldAndOnItsHost) {
  const int port = free_port();
  const std::vector<std::string> program{
      "sh", "-c",
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $LOCKSTEP_JOB $MASTER_PORT"};
  Launched first(node(0, 2, port, 2, program), {.environment = kToken});
  Launched second(node(1, 2, port, 1, program), {.environment = kToken});
  EXPECT_EQ(first.finish(), 0) << first.err;
  EXPECT_EQ(second.finish(), 0) << second.err;
  std::vector<std::string> all = lines(first.out);
  for (const std::string& line : lines(second.out)) all.push_back(line);
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), 3u);
  const std::string same = all[0].substr(all[0].find("run-"));
  EXPECT_EQ(all[0], "[0] 0 3 0 2 " + same);
  EXPECT_EQ(all[1], "[1] 1 3 1 2 " + same);
  EXPECT_EQ(all[2], "[2] 2 3 0 1 " + same);
}

TEST(Hosts, AFailureOnOneHostStopsTheOthersAndItsStatusIsEverybodys) {
  const int port = free_port();
  const std::vector<std::string> program{
      "--grace", "0", "sh", "-c",
      "echo ready; if [ $RANK = 1 ]; then exit 7; fi; while :; do sleep 0.05; done"};
  Launched first(node(0, 2, port, 1, program), {.environment = kToken});
  Launched second(node(1, 2, port, 1, program), {.environment = kToken});
  EXPECT_EQ(first.finish(), 7) << first.err;
  EXPECT_EQ(second.finish(), 7) << second.err;
  EXPECT_THAT(first.err, AllOf(HasSubstr("rank 1 (pid "), HasSubstr("ended with status 7"),
                               HasSubstr("on node 1")));
  EXPECT_EQ(first.left_over(), 0);
  EXPECT_EQ(second.left_over(), 0);
}

TEST(Hosts, ALauncherThatIsKilledEndsTheJobOfTheOthers) {
  const int port = free_port();
  const std::vector<std::string> program{"--grace", "0", "sh", "-c",
                                         "echo ready; while :; do sleep 0.05; done"};
  for (const int victim : {1, 0}) {
    Launched first(node(0, 2, port + victim, 1, program), {.environment = kToken});
    Launched second(node(1, 2, port + victim, 1, program), {.environment = kToken});
    first.wait_for("ready");
    second.wait_for("ready");
    Launched& killed = victim == 0 ? first : second;
    Launched& other = victim == 0 ? second : first;
    killed.signal(SIGKILL);
    EXPECT_EQ(killed.finish(), 1000 + SIGKILL);
    EXPECT_EQ(other.finish(), 1) << other.err;
    EXPECT_THAT(other.err, HasSubstr(concat("node ", victim)));
    EXPECT_EQ(other.left_over(), 0);
  }
}

TEST(Hosts, AHostThatFinishesFirstWaitsForTheOthers) {
  const int port = free_port();
  const std::vector<std::string> program{"sh", "-c",
                                         "if [ $RANK = 1 ]; then sleep 1; fi; echo end"};
  Launched first(node(0, 2, port, 1, program), {.environment = kToken});
  Launched second(node(1, 2, port, 1, program), {.environment = kToken});
  EXPECT_EQ(first.finish(), 0) << first.err;
  EXPECT_EQ(second.finish(), 0) << second.err;
  EXPECT_EQ(second.out, "[1] end\n");
}

TEST(Hosts, ASecondJobOnThePortIsToldItsNumberAndTheWayOut) {
  const comm::Fd other = comm::listen_tcp("127.0.0.1", 0, "test");
  const int port = comm::local_port(other);
  Launched job(node(0, 2, port, 1, {"true"}), {.environment = kToken});
  EXPECT_EQ(job.finish(), 1);
  EXPECT_THAT(job.err, AllOf(HasSubstr(concat("port ", port)), HasSubstr("in use"),
                             HasSubstr("another port")));
}

TEST(Hosts, AnotherSecretIsRefused) {
  const int port = free_port();
  Launched first(node(0, 2, port, 1, {"true"}), {.environment = kToken});
  Launched stranger(node(1, 2, port, 1, {"true"}), {.environment = {{"LOCKSTEP_TOKEN", "guess"}}});
  EXPECT_EQ(stranger.finish(), 1);
  EXPECT_THAT(stranger.err, HasSubstr("LOCKSTEP_TOKEN"));
  Launched second(node(1, 2, port, 1, {"true"}), {.environment = kToken});
  EXPECT_EQ(first.finish(), 0) << first.err;
  EXPECT_EQ(second.finish(), 0) << second.err;
}

TEST(Hosts, AHostThatDoesNotComeIsNamed) {
  auto environment = kToken;
  environment.emplace_back("LOCKSTEP_TIMEOUT", "0.3");
  Launched job(node(0, 3, free_port(), 1, {"true"}), {.environment = environment});
  EXPECT_EQ(job.finish(), 1);
  EXPECT_THAT(job.err, HasSubstr("nodes 1, 2 of 3"));
}

TEST(Hosts, AListFindsThisHostByItsAddress) {
  Launched job({"run", "-n", "1", "--hosts", "127.0.0.1", "sh", "-c", "echo $WORLD_SIZE"});
  EXPECT_EQ(job.finish(), 0) << job.err;
  EXPECT_EQ(job.out, "[0] 1\n");
  auto environment = kToken;
  environment.emplace_back("LOCKSTEP_TIMEOUT", "0.3");
  Launched two({"run", "-n", "1", "--hosts", "198.51.100.7,127.0.0.1", "--rendezvous",
                concat("127.0.0.1:", free_port()), "true"},
               {.environment = environment});
  EXPECT_EQ(two.finish(), 1);  // it is node 1, and no node 0 is there
  EXPECT_THAT(two.err, HasSubstr("node 0's launcher"));
}

TEST(Hosts, HalfACommandLineIsRefusedByName) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{"--nnodes", "2"}, "--node-rank"},
      {{"--nnodes", "2", "--node-rank", "0"}, "--rendezvous"},
      {{"--nnodes", "2", "--node-rank", "2", "--rendezvous", "h:1"}, "--node-rank"},
      {{"--nnodes", "2", "--node-rank", "0", "--rendezvous", "h:0"}, "--rendezvous"},
      {{"--nnodes", "2", "--node-rank", "0", "--rendezvous", "h:1"}, "LOCKSTEP_TOKEN"},
      {{"--hosts", "198.51.100.7,198.51.100.8"}, "--node-rank"},
      {{"--hosts", "a,b", "--nnodes", "3"}, "--nnodes"},
      {{"--node-rank", "1"}, "--nnodes"},
      {{"--max-restarts", "-1"}, "--max-restarts"}};
  for (const auto& [options, name] : wrong) {
    std::vector<std::string> arguments{"run", "-n", "1"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.emplace_back("true");
    Launched job(arguments, {.environment = {{"LOCKSTEP_TOKEN", ""}}});
    EXPECT_EQ(job.finish(), 2) << name;
    EXPECT_THAT(job.err, HasSubstr(name));
  }
}

TEST(Restarts, AJobThatFailsOnceEndsWellTheSecondTime) {
  const std::string logs = testing::TempDir() + "/lockstep_restart_" + std::to_string(::getpid());
  Launched job(
      {"run", "-n", "2", "--max-restarts", "2", "--log-dir", logs, GROUP_RANK, "fail-once"});
  EXPECT_EQ(job.finish(), 0) << job.err;
  EXPECT_THAT(job.err, AllOf(HasSubstr("ended with status 5"), HasSubstr("restart 1 of 2")));
  EXPECT_THAT(job.out, HasSubstr("[1] rank 1 of 2: sum 3 over shm"));
  EXPECT_EQ(job.left_over(), 0);
  std::filesystem::remove_all(logs);
}

TEST(Restarts, TheStatusIsThatOfTheLastStart) {
  Launched job({"run", "-n", "1", "--max-restarts", "2", "sh", "-c",
                "echo start $LOCKSTEP_RESTART; exit $((3 + LOCKSTEP_RESTART))"});
  EXPECT_EQ(job.finish(), 5);
  EXPECT_EQ(job.out, "[0] start 0\n[0] start 1\n[0] start 2\n");
}

TEST(Restarts, AllHostsStartAgainTogether) {
  const int port = free_port();
  const std::vector<std::string> program{"--max-restarts", "1", GROUP_RANK, "fail-once"};
  Launched first(node(0, 2, port, 1, program), {.environment = kToken});
  Launched second(node(1, 2, port, 1, program), {.environment = kToken});
  EXPECT_EQ(first.finish(), 0) << first.err;
  EXPECT_EQ(second.finish(), 0) << second.err;
  EXPECT_THAT(first.out, HasSubstr("[0] rank 0 of 2: sum 3"));
  EXPECT_THAT(second.out, HasSubstr("[1] rank 1 of 2: sum 3"));
}

}  // namespace
}  // namespace lockstep
