// `lockstep run` from outside: what it prints, how it ends, and what it leaves.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "launched.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::UnorderedElementsAre;

// lockstep run -n N [options] sh -c SCRIPT
std::vector<std::string> shell(int ranks, const std::string& script,
                               const std::vector<std::string>& options = {}) {
  std::vector<std::string> out{"run", "-n", std::to_string(ranks)};
  out.insert(out.end(), options.begin(), options.end());
  for (const char* argument : {"sh", "-c", script.c_str()}) out.emplace_back(argument);
  return out;
}

// In scripts: work without an end, in steps so short that a shell soon comes to its trap even where
// the signal came between two of them.
const std::string kWork = "while :; do sleep 0.05; done";

// A folder with named pipes, on which ranks wait until the test lets them go on.
class Gates {
 public:
  Gates() { std::filesystem::create_directories(folder_); }
  ~Gates() { std::filesystem::remove_all(folder_); }

  // For scripts: waits until open(name).
  std::string wait(const std::string& name) {
    make(name);
    return "read gate < " + file(name) + ";";
  }
  void open(const std::string& name) const { std::ofstream(file(name)) << "go\n"; }

  std::string make(const std::string& name) {
    ::mkfifo(file(name).c_str(), 0600);
    return file(name);
  }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }

 private:
  const std::string folder_ = testing::TempDir() + "/lockstep_run_" + std::to_string(::getpid());
};

TEST(Run, GivesEachRankItsPlaceUnderBothNamesAndEndsWithZero) {
  Launched job(shell(3,
                     "echo $LOCKSTEP_RANK $LOCKSTEP_WORLD_SIZE $LOCKSTEP_LOCAL_RANK "
                     "$LOCKSTEP_LOCAL_WORLD_SIZE $RANK $WORLD_SIZE $LOCAL_RANK "
                     "$LOCAL_WORLD_SIZE $MASTER_ADDR"));
  EXPECT_EQ(job.finish(), 0);
  EXPECT_THAT(lines(job.out),
              UnorderedElementsAre("[0] 0 3 0 3 0 3 0 3 127.0.0.1", "[1] 1 3 1 3 1 3 1 3 127.0.0.1",
                                   "[2] 2 3 2 3 2 3 2 3 127.0.0.1"));
  EXPECT_EQ(job.err, "");
}

TEST(Run, LeavesTheThreadsOfARankToItsOwnChoice) {
  Launched job(shell(1, "echo ${OMP_NUM_THREADS-unset}"),
               {.environment = {{"OMP_NUM_THREADS", "3"}}});
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.out, "[0] 3\n");
}

TEST(Run, RanksMeetInTheLaunchersStoreThoughRankZeroHasEnded) {
  Launched job({"run", "-n", "5", STORE_RANK}, {.environment = {{"LOCKSTEP_JOB", "my-job"}}});
  EXPECT_EQ(job.finish(), 0) << job.err;
  std::vector<std::string> want;
  for (int rank = 1; rank < 5; ++rank) {
    const std::string r = std::to_string(rank);
    want.push_back("[" + r + "] rank " + r + " of 5 (" + r +
                   " of 5 here) sum 105 token 64 job my-job");
  }
  EXPECT_THAT(lines(job.out), testing::UnorderedElementsAreArray(want));
}

TEST(Run, TwoJobsAtOnceHaveTokensAndPortsOfTheirOwn) {
  const std::string script =
      "echo $LOCKSTEP_TOKEN; echo $LOCKSTEP_STORE; echo $LOCKSTEP_JOB; echo ready;" + kWork;
  Launched one(shell(1, script));
  Launched two(shell(1, script));
  one.wait_for("ready");
  two.wait_for("ready");
  const std::vector<std::string> a = lines(one.out);
  const std::vector<std::string> b = lines(two.out);
  ASSERT_EQ(a.size(), 4u);
  ASSERT_EQ(b.size(), 4u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(a[i], b[i]);
}

TEST(Run, OneFailingRankStopsTheOthersWhoseLastWordsAreSeen) {
  Gates gates;
  Launched job(shell(3,
                     "if [ $RANK = 1 ]; then " + gates.wait("fail") +
                         "echo bad luck >&2; exit 7; fi;"
                         "trap 'echo last words; exit 1' TERM; echo ready;" +
                         kWork));  // with the grace it has unless told otherwise
  job.wait_for("ready", 2);
  gates.open("fail");
  EXPECT_EQ(job.finish(), 7);
  EXPECT_TRUE(std::regex_search(job.err, std::regex("rank 1 \\(pid [0-9]+\\) ended with status 7")))
      << job.err;
  // What the rank said of it stands before what the launcher says.
  EXPECT_LT(job.err.find("[1] bad luck"), job.err.find("ended with status 7"));
  EXPECT_THAT(job.err, HasSubstr("stopping ranks 0, 2"));
  EXPECT_THAT(job.out, AllOf(HasSubstr("[0] last words"), HasSubstr("[2] last words")));
  EXPECT_EQ(job.left_over(), 0);
}

TEST(Run, OthersMayEndByThemselvesWithinTheGrace) {
  Gates gates;
  const std::string pipe = gates.make("pipe");  // ends for its reader when its writer is killed
  Launched job(shell(2,
                     "if [ $RANK = 1 ]; then exec 3> " + pipe + "; kill -9 $$; fi;" + "cat " +
                         pipe + "; echo rank 1 is gone; exit 3",
                     {"--grace", "60"}));
  EXPECT_EQ(job.finish(), 128 + SIGKILL);
  EXPECT_THAT(job.out, HasSubstr("[0] rank 1 is gone"));
  EXPECT_THAT(job.err, Not(HasSubstr("stopping")));
}

TEST(Run, SaysWhichRankAKillHitAndEndsWithItsSignal) {
  Launched job(shell(2, "if [ $RANK = 1 ]; then echo $$; " + kWork + "; else " + kWork + "; fi",
                     {"--grace", "0"}));
  job.wait_for("\n");
  const std::string pid = job.out.substr(4, job.out.find('\n') - 4);
  ASSERT_EQ(::kill(std::stoi(pid), SIGKILL), 0);
  EXPECT_EQ(job.finish(), 128 + SIGKILL);
  EXPECT_THAT(job.err, HasSubstr("rank 1 (pid " + pid + ") was killed by signal 9 (Killed)"));
  EXPECT_EQ(job.left_over(), 0);
}

TEST(Run, ARankThatIgnoresSigtermIsKilled) {
  Gates gates;
  Launched job(shell(2,
                     "trap '' TERM; if [ $RANK = 0 ]; then " + gates.wait("fail") +
                         "exit 5; fi; echo ready;" + kWork,
                     {"--grace", "0.1"}));
  job.wait_for("ready");
  gates.open("fail");
  EXPECT_EQ(job.finish(), 5);
  EXPECT_THAT(job.err, HasSubstr("killing rank 1, which did not stop"));
  EXPECT_EQ(job.left_over(), 0);
}

TEST(Run, CtrlCGoesToAllRanksWhichMayEndInPeace) {
  Launched job(shell(3, "trap 'echo saved; exit 0' INT; echo ready; " + kWork));
  job.wait_for("ready", 3);
  job.signal(SIGINT);
  EXPECT_EQ(job.finish(), 128 + SIGINT);
  for (const char* line : {"[0] saved", "[1] saved", "[2] saved"}) {
    EXPECT_THAT(job.out, HasSubstr(line));
  }
  EXPECT_THAT(job.err, Not(HasSubstr("rank 0")));  // nobody is blamed
  EXPECT_EQ(job.left_over(), 0);
}

TEST(Run, ASecondCtrlCKills) {
  Launched job(shell(2, "trap '' INT TERM; echo ready; " + kWork));
  job.wait_for("ready", 2);
  job.signal(SIGINT);
  job.wait_for("Ctrl-C again");
  job.signal(SIGINT);
  EXPECT_EQ(job.finish(), 128 + SIGINT);
  EXPECT_EQ(job.left_over(), 0);
}

TEST(Run, SigtermIsPassedOn) {
  Launched job(shell(2, "trap 'echo term; exit 0' TERM; echo ready; " + kWork));
  job.wait_for("ready", 2);
  job.signal(SIGTERM);
  EXPECT_EQ(job.finish(), 128 + SIGTERM);
  EXPECT_THAT(job.out, AllOf(HasSubstr("[0] term"), HasSubstr("[1] term")));
}

TEST(Run, AReaderThatLeavesEndsTheJobAsItWouldAProgram) {
  Launched job(shell(2, "while :; do echo on and on; done"));
  job.wait_for("on and on");
  job.close_output();
  EXPECT_EQ(job.finish(), 128 + SIGPIPE);
  EXPECT_EQ(job.left_over(), 0);
}

TEST(Run, WhatRanksStartedEndsWithThem) {
  Launched job(shell(2,
                     "sleep 1000 & setsid sleep 1000 & setsid sh -c 'setsid sleep 1000 & sleep "
                     "1000' & echo done"));
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.left_over(), 0);
}

TEST(Run, AKilledLauncherTakesItsRanksAndTheirChildrenWithIt) {
  Launched job(shell(3, "sleep 1000 & echo ready; wait"));
  job.wait_for("ready", 3);
  EXPECT_GE(job.left_over(), 7);  // the launcher, three shells, three sleeps
  job.signal(SIGKILL);
  EXPECT_EQ(job.finish(), 1000 + SIGKILL);
  const auto deadline = comm::deadline_after(std::chrono::seconds(60));
  while (job.left_over() > 0 && comm::Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(job.left_over(), 0);
}

TEST(Run, AProgramThatCannotRunIsOneErrorAndNotOnePerRank) {
  Gates files;
  std::ofstream(files.file("plain")) << "text\n";
  std::ofstream(files.file("garbage")) << "no first line\n";
  std::filesystem::permissions(files.file("garbage"), std::filesystem::perms::owner_all);
  for (const std::string& program : {files.file("missing"), std::string("no-program-has-this-name"),
                                     files.file("plain"), files.file("garbage"), files.file("")}) {
    Launched job({"run", "-n", "4", program});
    EXPECT_EQ(job.finish(), 127) << program;
    EXPECT_EQ(lines(job.err).size(), 1u) << job.err;
    EXPECT_THAT(job.err, HasSubstr(program));
    EXPECT_EQ(job.out, "");
    EXPECT_EQ(job.left_over(), 0);
  }
}

TEST(Run, LinesStayWholeHoweverRanksWriteThem) {
  constexpr int kRanks = 5;  // more than this machine may have cores
  constexpr int kLines = 1501;
  Launched job(shell(kRanks, "i=0; while [ $i -lt " + std::to_string(kLines) +
                                 " ]; do printf \"line $RANK\"; printf \" %d of many\\n\" $i;"
                                 "i=$((i + 1)); done; printf \"end of $RANK\""));
  EXPECT_EQ(job.finish(), 0);
  int next[kRanks] = {};
  for (const std::string& line : lines(job.out)) {
    const int rank = line.at(1) - '0';
    ASSERT_TRUE(rank >= 0 && rank < kRanks) << line;
    const std::string r = std::to_string(rank);
    const int i = next[rank]++;
    ASSERT_EQ(line, i < kLines ? "[" + r + "] line " + r + " " + std::to_string(i) + " of many"
                               : "[" + r + "] end of " + r);
  }
  EXPECT_THAT(next, testing::Each(kLines + 1));
}

TEST(Run, OfAProgressBarThatNobodySeesOnlyTheLastStateIsPrinted) {
  Launched job(shell(2, "printf '\\r10%%\\r55%%'; printf '\\r100%%\\n'; printf 'dos\\r\\n'"));
  EXPECT_EQ(job.finish(), 0);
  EXPECT_THAT(lines(job.out), UnorderedElementsAre("[0] 100%", "[0] dos", "[1] 100%", "[1] dos"));
}

TEST(Run, ALineWithoutAnEndIsPrintedInPiecesAndNothingIsLost) {
  Launched job(shell(1, "head -c 300001 /dev/zero | tr '\\0' x"));
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(std::count(job.out.begin(), job.out.end(), 'x'), 300001);
}

TEST(Run, ReadsWhatIsPipedInOnRankZeroAlone) {
  Launched job(shell(2, "read line && echo \"got $line\" || echo nothing"), {.input = "words\n"});
  EXPECT_EQ(job.finish(), 0);
  EXPECT_THAT(lines(job.out), UnorderedElementsAre("[0] got words", "[1] nothing"));
}

TEST(Run, OnATerminalRankZeroHasOneTooAndItsProgressBarStaysOne) {
  Gates gates;
  Launched job(shell(2,
                     "if [ $RANK = 1 ]; then test -t 1 || echo pipe; exit; fi;"
                     "test -t 1 && echo terminal; printf '\\r10%%';" +
                         gates.wait("on") + "printf '\\r20%%\\n'"),
               {.terminal = true, .environment = {{"TERM", "xterm"}, {"NO_COLOR", ""}}});
  job.wait_for("10%");
  gates.open("on");
  EXPECT_EQ(job.finish(), 0);
  const std::string zero = "\x1b[36m[0]\x1b[0m ";
  EXPECT_THAT(job.out, HasSubstr(zero + "terminal\n"));
  EXPECT_THAT(job.out, HasSubstr("\r" + zero + "10%\x1b[K"));
  EXPECT_THAT(job.out, HasSubstr(zero + "20%\n"));
  EXPECT_THAT(job.out, HasSubstr("\x1b[33m[1]\x1b[0m pipe\n"));
}

TEST(Run, LinesOfOtherRanksDoNotTearALiveProgressBar) {
  Gates gates;
  Launched job(shell(2, "if [ $RANK = 1 ]; then " + gates.wait("one") + "echo hello; exit; fi;" +
                            "printf '\\r10%%';" + gates.wait("zero") + "printf '\\r20%%\\n'"),
               {.terminal = true, .environment = {{"NO_COLOR", "1"}}});
  job.wait_for("10%");
  gates.open("one");
  job.wait_for("hello");
  gates.open("zero");
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.out,
            "\r[0] 10%\x1b[K"
            "\r\x1b[K[1] hello\n"
            "\r[0] 10%\x1b[K"
            "\r\x1b[K[0] 20%\n");
}

TEST(Run, NoColorIsRespected) {
  Launched job(shell(2, "echo text"), {.terminal = true, .environment = {{"NO_COLOR", "1"}}});
  EXPECT_EQ(job.finish(), 0);
  EXPECT_THAT(lines(job.out), UnorderedElementsAre("[0] text", "[1] text"));
}

TEST(Run, WritesEachRanksOutputToItsLog) {
  const Gates files;
  const std::string folder = files.file("logs");
  Launched job(shell(2, "echo out $RANK; echo err $RANK >&2", {"--log-dir", folder}));
  EXPECT_EQ(job.finish(), 0);
  for (const char* rank : {"0", "1"}) {
    std::ifstream file(folder + "/rank-" + rank + ".log");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(lines(text),
                UnorderedElementsAre(std::string("out ") + rank, std::string("err ") + rank));
  }
}

TEST(Cli, RefusesWhatItDoesNotKnowByNameWithStatusTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{"bogus"}, "bogus"},
      {{"--bogus"}, "--bogus"},
      {{}, "usage"},
      {{"run"}, "-n"},
      {{"run", "-n"}, "-n"},
      {{"run", "-n", "2"}, "program"},
      {{"run", "-n", "0", "true"}, "\"0\""},
      {{"run", "-n", "2x", "true"}, "\"2x\""},
      {{"run", "-n", "2", "--bogus", "true"}, "--bogus"},
      {{"run", "-n", "2", "--grace", "-1", "true"}, "\"-1\""}};
  for (const auto& [arguments, names] : wrong) {
    Launched job(arguments);
    EXPECT_EQ(job.finish(), 2) << names;
    EXPECT_THAT(job.err, AllOf(HasSubstr(names), HasSubstr("usage: lockstep")));
    EXPECT_EQ(job.out, "");
  }
}

TEST(Cli, HelpAndVersionAreNoErrors) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"run", "--help"}, {"run", "-n", "2", "--help"}}) {
    Launched job(arguments);
    EXPECT_EQ(job.finish(), 0);
    EXPECT_THAT(job.out, HasSubstr("usage: lockstep"));
    EXPECT_EQ(job.err, "");
  }
  Launched version({"--version"});
  EXPECT_EQ(version.finish(), 0);
  EXPECT_THAT(version.out, MatchesRegex("lockstep [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(Cli, OptionsAfterTheProgramAreThePrograms) {
  Launched job({"run", "-n", "1", "--", "echo", "-n", "--help"});
  EXPECT_EQ(job.finish(), 0);
  EXPECT_EQ(job.out, "[0] --help\n");
}

}  // namespace
}  // namespace lockstep
