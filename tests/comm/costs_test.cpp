// The cost model: its table, the one choice of all ranks, and what it tells.

#include "lockstep/comm/costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CostTables : public ::testing::Test {
 protected:
  void SetUp() override { file_ = "costs-" + std::to_string(getpid()) + ".txt"; }
  void TearDown() override {
    unsetenv("LOCKSTEP_TUNE");
    unsetenv("LOCKSTEP_LOG");
    std::remove(file_.c_str());
  }
  void write(const std::string& text) { std::ofstream(file_) << text; }

  // What a run of the collectives on plain memory says on standard error, with all its bits
  // checked.
  std::string log_of_run(const std::string& transport) {
    setenv("LOCKSTEP_LOG", "debug", 1);
    ::testing::internal::CaptureStderr();
    run_ranks(
        2,
        [](Communicator& comm) {
          for (const int64_t count : {5, 9001, 300007}) {
            Bytes data = input_of(DType::kF32, comm.rank(), count);
            comm.all_reduce(data.data(), data.data(), count, DType::kF32, ReduceOp::kSum).wait();
            EXPECT_EQ(data == folded_inputs(DType::kF32, ReduceOp::kSum, Blocks::of_all(count, 2)),
                      true);
          }
        },
        options_of({transport, ""}));
    return ::testing::internal::GetCapturedStderr();
  }

  std::string file_;
};

TEST_F(CostTables, KnowWaysBetweenDevicesWhereBothHaveALine) {
  const Costs cuda{1e-5, 0, 3e-12, 0, 0};
  const Costs nccl{2e-5, 0, 2e-12, 0, 0};
  save_costs(file_, "cuda", 3, cuda);
  EXPECT_EQ(load_device_costs(file_, 3), std::nullopt);
  save_costs(file_, "nccl", 3, nccl);
  const auto both = load_device_costs(file_, 3);
  ASSERT_TRUE(both.has_value());
  EXPECT_EQ(both->cuda, cuda);
  EXPECT_EQ(both->nccl, nccl);
  EXPECT_EQ(load_device_costs(file_, 2), std::nullopt);
  EXPECT_DOUBLE_EQ(device_seconds(nccl, 3, 3e6), 2e-5 + 8e-6);
}

TEST_F(CostTables, KeepALineForEachTransportAndSize) {
  const Costs first{1e-6, 2e-11, 3e-11, 4e-7, 5e-11};
  const Costs second{2e-6, 2e-11, 3e-11, 4e-7, 5e-11};
  save_costs(file_, "shm", 2, second);
  save_costs(file_, "tcp", 2, second);
  save_costs(file_, "shm", 4, second);
  save_costs(file_, "shm", 2, first);
  EXPECT_EQ(load_costs(file_, "shm", 2), first);
  EXPECT_EQ(load_costs(file_, "tcp", 2), second);
  EXPECT_EQ(load_costs(file_, "shm", 4), second);
  EXPECT_EQ(load_costs(file_, "tcp", 4), std::nullopt);
}

TEST_F(CostTables, ThatAreSpoiledAreErrorsThatNameTheLine) {
  for (const char* line : {"shm 2 1 2 3 4", "shm two 1 2 3 4 5", "shm 2 1 2 3 4 5 6",
                           "shm 2 1 2 -3 4 5", "shm 2 1 2 3 4 1e300", "shm 0 1 2 3 4 5"}) {
    write(std::string("# costs\n\n") + line + "\n");
    try {
      load_costs(file_, "shm", 2);
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(file_ + ":3"), HasSubstr(line)));
    }
  }
  EXPECT_THROW(load_costs("no/such/table", "shm", 2), Error);
}

TEST_F(CostTables, DecideTheAlgorithmOfEverySize) {
  setenv("LOCKSTEP_TUNE", file_.c_str(), 1);
  // Meetings that cost nothing, and copies that cost much; then the other way round.
  write("shm 2 0 1e-6 1e-11 0 1\nthread 2 0 1e-6 1e-11 0 1\ntcp 2 0 1 1e-9 0 0\n");
  EXPECT_THAT(log_of_run("shm"), AllOf(HasSubstr("all_reduce of 4 to 65536 bytes: two_shot"),
                                       HasSubstr("in one_shot"), HasSubstr("through staging areas"),
                                       HasSubstr("to rank 1: shm"), HasSubstr(file_)));
  EXPECT_THAT(log_of_run("thread"), HasSubstr("all_reduce of 4 to 1073741824 bytes: two_shot"));
  EXPECT_THAT(log_of_run("tcp"), HasSubstr("all_reduce of 4 to 1073741824 bytes: ring"));
  write("shm 2 1 1e-11 1e-11 0 1e-12\ntcp 2 1 1e-11 1e-11 0 0\n");
  EXPECT_THAT(log_of_run("shm"), AllOf(HasSubstr("all_reduce of 4 to 65536 bytes: one_shot"),
                                       HasSubstr("all_reduce of 131072 to 1073741824")));
  EXPECT_THAT(log_of_run("tcp"), HasSubstr("all_reduce of 4 to 262144 bytes: one_shot"));
  // A table without this group's line: measured.
  EXPECT_THAT(log_of_run("mixed"), HasSubstr("costs measured"));
  write("shm 2 1\n");
  EXPECT_THROW(run_ranks(
                   2, [](Communicator&) {}, options_of({"shm", ""})),
               Error);
}

TEST_F(CostTables, AreWrittenOnRequest) {
  Options options = options_of({"shm", ""});
  options.save_costs = file_;
  run_ranks(
      3, [](Communicator&) {}, options);
  const std::optional<Costs> costs = load_costs(file_, "shm", 3);
  ASSERT_TRUE(costs.has_value());
  EXPECT_GT(costs->meet, 0);
  EXPECT_GT(costs->copy, 0);
  EXPECT_GT(costs->fetch, 0);
}

TEST(Log, HasOneLevel) {
  setenv("LOCKSTEP_LOG", "verbose", 1);
  EXPECT_THROW(run_ranks(
                   2, [](Communicator&) {}, options_of({"shm", ""})),
               Error);
  unsetenv("LOCKSTEP_LOG");
}

}  // namespace
}  // namespace lockstep::comm
