// `lockstep doctor` from outside: what it says of a machine, of a job, and of a failure.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "launched.h"
#include "lockstep/comm/text.h"

namespace lockstep {
namespace {

using comm::concat;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A job that fails leaves its files in a folder of this test.
class DoctorTest : public testing::Test {
 protected:
  DoctorTest() { std::filesystem::create_directories(folder_); }
  ~DoctorTest() override { std::filesystem::remove_all(folder_); }

  // Runs group_rank on three ranks, and the doctor over what they left.
  std::string examine(const std::string& behaviour, int status) {
    Launched job({"run", "-n", "3", "--grace", "0", "--log-dir", folder_, GROUP_RANK, behaviour},
                 {.environment = {{"LOCKSTEP_TIMEOUT", "1"}, {"LOCKSTEP_JOB", "my-job"}}});
    EXPECT_NE(job.finish(), 0);
    std::vector<std::string> arguments{"doctor"};
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().extension() == ".flight") arguments.push_back(entry.path());
    }
    EXPECT_GT(arguments.size(), 2u) << job.err;
    Launched doctor(arguments);
    EXPECT_EQ(doctor.finish(), status) << doctor.err;
    return doctor.out;
  }

  const std::string folder_ = testing::TempDir() + "/lockstep_doctor_" + std::to_string(::getpid());
};

TEST_F(DoctorTest, FindsTheFirstCollectiveAboutWhichRanksDisagree) {
  const std::string text = examine("disagree", 1);
  EXPECT_THAT(text, AllOf(HasSubstr("collective 8 is the first that ranks disagree about"),
                          HasSubstr("asked for all_reduce sum of 1009 f32"),
                          HasSubstr("rank 1 asked for barrier")));
}

TEST_F(DoctorTest, NamesTheRankThatHasNoFileAndTheCollectiveOthersWaitedIn) {
  const std::string text = examine("absent", 1);
  EXPECT_THAT(text, AllOf(HasSubstr("rank 1 has no file here"),
                          HasSubstr("collective 8 is the first that did not finish everywhere"),
                          HasSubstr("ranks 0, 2 asked for all_reduce sum of 1009 f32, failed")));
}

TEST_F(DoctorTest, RefusesWhatNoRankWroteByFileAndLine) {
  const std::string name = folder_ + "/notes.txt";
  std::ofstream(name) << "some notes\n";
  Launched job({"doctor", name});
  EXPECT_EQ(job.finish(), 1);
  EXPECT_THAT(job.err, AllOf(HasSubstr(name), HasSubstr("line 1"), HasSubstr("some notes")));
  Launched missing({"doctor", folder_ + "/none"});
  EXPECT_EQ(missing.finish(), 1);
  EXPECT_THAT(missing.err, HasSubstr("/none"));
}

TEST_F(DoctorTest, SaysWhatTheMachineHasAndThatTransportsWork) {
  Launched job({"doctor"}, {.environment = {{"LOCKSTEP_TOKEN", "hush"}}});
  EXPECT_EQ(job.finish(), 0) << job.out;
  for (const char* name :
       {"system", "cores", "memory", "GPUs", "NCCL", "limits", "network", "environment"}) {
    EXPECT_THAT("\n" + job.out, HasSubstr(concat("\n", name, " ")));
  }
  for (const char* name : {"thread", "shm", "tcp"}) {
    EXPECT_THAT(job.out, testing::ContainsRegex(concat(name, " +works")));
  }
  EXPECT_THAT(job.out, Not(HasSubstr("hush")));
}

TEST_F(DoctorTest, AsARankOfAJobSaysWhatEachPairUses) {
  Launched job({"run", "-n", "3", LOCKSTEP_CLI, "doctor"});
  EXPECT_EQ(job.finish(), 0) << job.err;
  EXPECT_THAT(job.out, AllOf(HasSubstr("[0] rank 2"), HasSubstr("every pair of ranks uses shm"),
                             Not(HasSubstr("[1] "))));
}

TEST_F(DoctorTest, WhereSomeRanksShareAHostItNamesTheWayOfEachPair) {
  Launched job({"run", "-n", "3", "sh", "-c",
                "LOCKSTEP_HOST_ID=$((LOCKSTEP_RANK / 2)) exec \"$0\" doctor", LOCKSTEP_CLI});
  EXPECT_EQ(job.finish(), 0) << job.err;
  EXPECT_THAT(job.out, testing::ContainsRegex("rank 0 to rank 1: .*rank 1 by shared memory"));
  EXPECT_THAT(job.out, testing::ContainsRegex("rank 1 to rank 2: .*rank 2 by 1 socket"));
  EXPECT_THAT(job.out, testing::ContainsRegex("rank 2 to rank 1: messages by a socket"));
}

TEST_F(DoctorTest, HelpIsNoErrorAndAnUnknownOptionIs) {
  Launched help({"doctor", "--help"});
  EXPECT_EQ(help.finish(), 0);
  EXPECT_THAT(help.out, HasSubstr("usage: lockstep doctor"));
  Launched wrong({"doctor", "--bogus"});
  EXPECT_EQ(wrong.finish(), 2);
  EXPECT_THAT(wrong.err, HasSubstr("--bogus"));
}

}  // namespace
}  // namespace lockstep
