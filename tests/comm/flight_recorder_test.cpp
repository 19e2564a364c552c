#include "lockstep/comm/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

Flight example() {
  Flight flight{"run-1", "node7", 123, 2, 1764446400123456, "[barrier] rank 1 died", {}};
  flight.groups.push_back(
      {"world",
       "shm",
       2,
       {0, 1, 2},
       70000000000ull,
       {{69999999999ull, "done", 1764446400000001, 0, 0, "barrier"},
        {70000000000ull, "failed", 1764446400000002, 3, 4, "all_reduce sum of 1009 f32"}}});
  flight.groups.push_back({"split/17", "tcp", 0, {2}, 0, {}});
  return flight;
}

TEST(FlightFile, IsReadAsItWasWritten) {
  const Flight flight = example();
  EXPECT_EQ(read_flight(write_flight(flight), "file"), flight);
  EXPECT_EQ(read_flight(write_flight(Flight{}), "file"), Flight{});
}

TEST(FlightFile, ALineEndInAMessageIsNone) {
  Flight flight = example();
  flight.error = "one\ngroup: two\r\nthree";
  const Flight read = read_flight(write_flight(flight), "file");
  EXPECT_EQ(read.error, "one group: two  three");
  EXPECT_EQ(read.groups, flight.groups);
}

TEST(FlightFile, WhatIsNoneIsRefusedByFileAndLine) {
  const std::string good = write_flight(example());
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "line 0"},
      {"notes\n", "line 1"},
      {good + "what\n", "name: value"},
      {good + "host: a\rb\n", "as Unix ends them"},
      {good + "colour: blue\n", "colour"},
      {good + "pid: 99999999999999\n", "99999999999999"},
      {"lockstep flight recorder 1\ngroup: g\n#5 done 1 1 1 a\n#5 done 1 1 1 a\n", "ascending"},
      {good + "#0 done 1 1 1 barrier\n", "\"0\""},
      {good + "#70000000001 gone 1 1 1 barrier\n", "queued, started, done or failed"},
      {good + "#70000000001 done 1 -1 1 barrier\n", "\"-1\""},
      {"lockstep flight recorder 1\n#1 done 1 1 1 barrier\n", "\"group:\" before it"}};
  for (const auto& [text, names] : wrong) {
    try {
      read_flight(text, "some-file");
      ADD_FAILURE() << "was read: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("some-file"), HasSubstr(names)));
    }
  }
}

// Ranks that are threads write to a folder of this test.
class FlightRecorderTest : public testing::Test {
 protected:
  FlightRecorderTest() { ::setenv("LOCKSTEP_RECORD", folder_.c_str(), 1); }
  ~FlightRecorderTest() override {
    ::unsetenv("LOCKSTEP_RECORD");
    std::filesystem::remove_all(folder_);
  }

  // `before` sums, then rank 1 asks for a barrier where the others ask for a sum.
  static void disagree(int ranks, int before, int64_t count) {
    run_ranks(ranks, [&](Communicator& comm) {
      std::vector<float> data(static_cast<size_t>(count), 1);
      const auto sum = [&] {
        comm.all_reduce(data.data(), data.data(), count, DType::kF32, ReduceOp::kMax).wait();
      };
      for (int i = 0; i < before; ++i) sum();
      try {
        comm.rank() == 1 ? comm.barrier().wait() : sum();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        errors_[static_cast<size_t>(comm.rank())] = error.what();
      }
    });
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  Flight read(int rank) const {
    const std::string name = concat(folder_, "/rank-", rank, ".flight");
    std::ifstream file(name);
    return read_flight(std::string{std::istreambuf_iterator<char>(file), {}}, name);
  }

  static inline std::string errors_[3];
  const std::string folder_ = testing::TempDir() + "/lockstep_flight_" + std::to_string(::getpid());
};

TEST_F(FlightRecorderTest, AnErrorLeavesAFilePerRankThatSaysWhatEachAskedFor) {
  disagree(3, 4, 1009);
  EXPECT_THAT(files(), testing::ElementsAre("rank-0.flight", "rank-1.flight", "rank-2.flight"));
  for (int rank = 0; rank < 3; ++rank) {
    const Flight flight = read(rank);
    EXPECT_EQ(flight.rank, rank);
    EXPECT_EQ(flight.pid, ::getpid());
    EXPECT_THAT(flight.error, HasSubstr("disagree about collective 5"));
    ASSERT_THAT(flight.groups, SizeIs(1));
    const FlightGroup& group = flight.groups[0];
    EXPECT_EQ(group.name, "world");
    EXPECT_EQ(group.transport, "thread");
    EXPECT_EQ(group.rank, rank);
    EXPECT_THAT(group.world_ranks, testing::ElementsAre(0, 1, 2));
    EXPECT_EQ(group.asked, 5u);
    ASSERT_THAT(group.entries, SizeIs(5));
    for (size_t i = 0; i < 5; ++i) {
      const FlightEntry& entry = group.entries[i];
      EXPECT_EQ(entry.sequence, i + 1);
      EXPECT_EQ(entry.state, i < 4 ? "done" : "failed");
      EXPECT_EQ(entry.request, i == 4 && rank == 1 ? "barrier" : "all_reduce max of 1009 f32");
      // Written within this test's minutes, by a clock that was read back through another's rate.
      const int64_t us = i == 4 ? entry.finished_us : entry.queued_us;
      if (i != 0 && i != 4)
        continue;  // small ones have no times, but for the first and a failed one
      EXPECT_LE(us, flight.written_us + 1'000'000);
      EXPECT_GT(us, flight.written_us - 300'000'000);
    }
    EXPECT_THAT(errors_[rank], AllOf(HasSubstr(concat(folder_, "/rank-", rank, ".flight")),
                                     HasSubstr("lockstep doctor")));
  }
}

TEST_F(FlightRecorderTest, TheNewestThousandAreKeptAndLargeOnesHaveTheirTimes) {
  disagree(2, 1500, 20011);
  const FlightGroup group = read(0).groups.at(0);
  EXPECT_EQ(group.asked, 1501u);
  ASSERT_THAT(group.entries, SizeIs(FlightRecorder::kEntries));
  EXPECT_EQ(group.entries.front().sequence, 1502u - FlightRecorder::kEntries);
  EXPECT_EQ(group.entries.back().sequence, 1501u);
  const FlightEntry& large = group.entries[500];
  EXPECT_LE(large.queued_us, large.started_us);
  EXPECT_LE(large.started_us, large.finished_us);
}

TEST_F(FlightRecorderTest, AnotherErrorReplacesTheFileAndLeavesNoOther) {
  for (int i = 0; i < 5; ++i) disagree(2, i, 3);
  EXPECT_THAT(files(), testing::ElementsAre("rank-0.flight", "rank-1.flight"));
  EXPECT_EQ(read(1).groups.at(0).asked, 5u);
}

TEST_F(FlightRecorderTest, AllGroupsOfARankAreInItsFile) {
  run_ranks(3, [](Communicator& comm) {
    const auto part = comm.split(comm.rank() == 2 ? 1 : 0);
    float value = 1;
    part->all_reduce(&value, &value, 1, DType::kF32, ReduceOp::kSum).wait();
    try {
      comm.rank() == 1 ? comm.barrier().wait() : comm.broadcast(&value, 1, DType::kF32, 0).wait();
    } catch (const Error&) {
      return;
    }
    ADD_FAILURE() << "no error";
  });
  const Flight flight = read(1);
  ASSERT_THAT(flight.groups, SizeIs(2));
  EXPECT_EQ(flight.groups[0].name, "world");
  EXPECT_THAT(flight.groups[1].name, testing::StartsWith("split/"));
  EXPECT_THAT(flight.groups[1].world_ranks, testing::ElementsAre(0, 1));
  EXPECT_EQ(flight.groups[1].entries.at(0).state, "done");
}

TEST_F(FlightRecorderTest, OffIsOffAndAFolderThatCannotBeMadeIsNoError) {
  for (const char* where : {"off", "/proc/none/here"}) {
    ::setenv("LOCKSTEP_RECORD", where, 1);
    disagree(2, 1, 3);
    EXPECT_THAT(errors_[0], testing::Not(HasSubstr("doctor")));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(FlightRecorderTest, WithoutTheVariableAFolderOfThisUserAloneIsUsed) {
  ::unsetenv("LOCKSTEP_RECORD");
  ::setenv("TMPDIR", testing::TempDir().c_str(), 1);
  const std::string own = concat(testing::TempDir(), "/lockstep-", ::geteuid());
  std::filesystem::remove_all(own);
  disagree(2, 1, 3);
  struct stat status {};
  ASSERT_EQ(::stat(own.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_THAT(errors_[0], HasSubstr("lockstep-"));
  // A link that somebody else could have laid there is not followed.
  std::filesystem::remove_all(own);
  std::filesystem::create_directories(folder_);
  std::filesystem::create_symlink(folder_, own);
  disagree(2, 1, 3);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  std::filesystem::remove(own);
  ::unsetenv("TMPDIR");
}

}  // namespace
}  // namespace lockstep::comm
