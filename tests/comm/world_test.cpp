#include "lockstep/comm/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Variables = std::vector<std::pair<std::string, std::string>>;

// Each test sees the variables it sets and none of the launcher the tests themselves run under.
class WorldTest : public testing::Test {
 protected:
  WorldTest() { clear(); }
  ~WorldTest() override { clear(); }

  static void clear() {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const std::string name = text.substr(0, text.find('='));
      for (const char* prefix : {"LOCKSTEP_", "OMPI_", "PMI", "MPI_", "SLURM_", "TORCHELASTIC_",
                                 "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_"}) {
        if (name.starts_with(prefix)) names.push_back(name);
      }
    }
    for (const std::string& name : names) unsetenv(name.c_str());
  }

  static World read(const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return world_from_environment();
  }

  static std::string error(const Variables& variables) {
    try {
      read(variables);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "no error";
  }

  static void expect_place(const World& world, int rank, int size, int local_rank, int local_size) {
    EXPECT_EQ(world.rank, rank);
    EXPECT_EQ(world.size, size);
    EXPECT_EQ(world.local_rank, local_rank);
    EXPECT_EQ(world.local_size, local_size);
  }

  static void expect_store(const World& world, const std::string& host, int port) {
    EXPECT_EQ(world.store_host, host);
    EXPECT_EQ(world.store_port, port);
  }
};

const Variables kOwn{{"LOCKSTEP_RANK", "3"},           {"LOCKSTEP_WORLD_SIZE", "8"},
                     {"LOCKSTEP_LOCAL_RANK", "1"},     {"LOCKSTEP_LOCAL_WORLD_SIZE", "2"},
                     {"LOCKSTEP_STORE", "[::1]:4000"}, {"LOCKSTEP_STORE_HOSTED", "1"},
                     {"LOCKSTEP_TOKEN", "secret"},     {"LOCKSTEP_JOB", "j7"}};
const Variables kTorch{{"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"MASTER_ADDR", "node0"},
                       {"MASTER_PORT", "29500"}};
const Variables kMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                     {"OMPI_COMM_WORLD_SIZE", "3"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                     {"PMIX_NAMESPACE", "3014000641.1"}};
const Variables kPmi{
    {"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "4001"}};
const Variables kSlurm{{"SLURM_PROCID", "6"},
                       {"SLURM_NTASKS", "7"},
                       {"SLURM_LOCALID", "2"},
                       {"SLURM_NODEID", "2"},
                       {"SLURM_STEP_TASKS_PER_NODE", "2(x2),3"},
                       {"SLURM_STEP_NODELIST", "gpu[07-08,11]"},
                       {"SLURM_JOB_ID", "991"}};

Variables without(Variables variables, const std::string& name) {
  std::erase_if(variables, [&](const auto& entry) { return entry.first == name; });
  return variables;
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables = without(std::move(variables), name);
  variables.emplace_back(name, value);
  return variables;
}

Variables join(Variables a, const Variables& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(WorldTest, NothingSetIsOneRank) {
  const World world = read({});
  expect_place(world, 0, 1, 0, 1);
  expect_store(world, "127.0.0.1", 0);
  EXPECT_FALSE(world.store_hosted);
  EXPECT_EQ(world.token, "");
}

TEST_F(WorldTest, AnEmptyValueIsNotSet) {
  expect_place(read({{"RANK", ""}, {"LOCKSTEP_RANK", ""}}), 0, 1, 0, 1);
}

TEST_F(WorldTest, ReadsItsOwnLaunchersNames) {
  const World world = read(kOwn);
  expect_place(world, 3, 8, 1, 2);
  expect_store(world, "::1", 4000);
  EXPECT_TRUE(world.store_hosted);
  EXPECT_EQ(world.token, "secret");
  EXPECT_EQ(world.job, "j7");
}

TEST_F(WorldTest, ReadsTorchrunsNames) {
  const World world = read(join(kTorch, {{"LOCKSTEP_TOKEN", "t"}, {"TORCHELASTIC_RUN_ID", "r"}}));
  expect_place(world, 5, 8, 1, 4);
  expect_store(world, "node0", 29500);
  EXPECT_FALSE(world.store_hosted);
  EXPECT_EQ(world.token, "t");
  EXPECT_EQ(world.job, "r");
}

TEST_F(WorldTest, StaysOffThePortOfTorchrunsOwnStore) {
  expect_store(read(with(kTorch, "TORCHELASTIC_USE_AGENT_STORE", "True")), "node0", 29501);
  expect_store(read(with(kTorch, "TORCHELASTIC_USE_AGENT_STORE", "False")), "node0", 29500);
}

TEST_F(WorldTest, LockstepStoreNamesTheStoreForEveryLauncher) {
  for (const Variables& source : {kTorch, kMpi, kPmi, kSlurm}) {
    expect_store(read(with(source, "LOCKSTEP_STORE", "10.0.0.9:77")), "10.0.0.9", 77);
  }
}

TEST_F(WorldTest, EveryRankOfAnMpiJobOnOneHostFindsTheSamePort) {
  const World one = read(kMpi);
  expect_place(one, 1, 3, 1, 3);
  const World two =
      read(with(with(kMpi, "OMPI_COMM_WORLD_RANK", "2"), "OMPI_COMM_WORLD_LOCAL_RANK", "2"));
  expect_store(two, "127.0.0.1", one.store_port);
  EXPECT_GE(one.store_port, 20000);
  EXPECT_LT(one.store_port, 30000);
  EXPECT_NE(read(with(kMpi, "PMIX_NAMESPACE", "3014000642.1")).store_port, one.store_port);
}

TEST_F(WorldTest, AnMpiJobOnSeveralHostsMustBeToldWhereTheStoreIs) {
  EXPECT_THAT(
      error(with(with(kMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "2"), "OMPI_COMM_WORLD_SIZE", "4")),
      HasSubstr("LOCKSTEP_STORE"));
}

TEST_F(WorldTest, ReadsPmisNamesAndTakesLoopbackForOneHost) {
  const World world = read(kPmi);
  expect_place(world, 2, 3, 2, 3);
  expect_store(world, "127.0.0.1", 4001);
  expect_place(read(with(kPmi, "MASTER_ADDR", "10.0.0.1")), 2, 3, 0, 1);
}

TEST_F(WorldTest, ReadsSlurmsNames) {
  const World world = read(kSlurm);
  expect_place(world, 6, 7, 2, 3);
  EXPECT_EQ(world.store_host, "gpu07");
  EXPECT_GE(world.store_port, 20000);
  EXPECT_EQ(world.job, "991");
  for (const auto& [list, first] : Variables{{"a", "a"},
                                             {"a,b[1-3]", "a"},
                                             {"n[3]", "n3"},
                                             {"n[001,004]-ib", "n001-ib"},
                                             {"n[1-2]x,m", "n1x"}}) {
    EXPECT_EQ(read(with(kSlurm, "SLURM_STEP_NODELIST", list)).store_host, first) << list;
  }
}

TEST_F(WorldTest, AnAllocationOfSlurmIsNotATask) {
  expect_place(read({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "5"}}), 0, 1, 0, 1);
}

TEST_F(WorldTest, TakesTheFirstSourceThatIsThere) {
  const std::vector<std::pair<Variables, int>> order{
      {kOwn, 3}, {kTorch, 5}, {kMpi, 1}, {kPmi, 2}, {kSlurm, 6}};
  for (size_t i = 0; i < order.size(); ++i) {
    Variables all;
    for (size_t j = i; j < order.size(); ++j) {
      for (const auto& [name, value] : order[j].first) {
        if (std::none_of(all.begin(), all.end(), [&](const auto& v) { return v.first == name; })) {
          all.emplace_back(name, value);
        }
      }
    }
    EXPECT_EQ(read(all).rank, order[i].second);
  }
}

TEST_F(WorldTest, HalfASourceIsAnErrorThatNamesWhatIsMissing) {
  const std::vector<std::pair<Variables, std::vector<std::string>>> sources{
      {kOwn,
       {"LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE", "LOCKSTEP_LOCAL_RANK", "LOCKSTEP_LOCAL_WORLD_SIZE",
        "LOCKSTEP_STORE"}},
      {kTorch,
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}},
      {kMpi,
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE"}},
      {kPmi, {"PMI_RANK", "PMI_SIZE", "MASTER_ADDR", "MASTER_PORT"}},
      {kSlurm, {"SLURM_NTASKS"}}};
  for (const auto& [variables, names] : sources) {
    for (const std::string& name : names) {
      EXPECT_THAT(error(without(variables, name)), HasSubstr(name));
    }
  }
}

TEST_F(WorldTest, NonsenseIsAnErrorThatNamesTheVariableAndTheValue) {
  const std::vector<std::pair<Variables, std::vector<std::string>>> sources{
      {kOwn,
       {"LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE", "LOCKSTEP_LOCAL_RANK", "LOCKSTEP_LOCAL_WORLD_SIZE",
        "LOCKSTEP_STORE", "LOCKSTEP_STORE_HOSTED"}},
      {kTorch, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"}},
      {kSlurm, {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"}}};
  for (const auto& [variables, names] : sources) {
    for (const std::string& name : names) {
      for (const char* value : {"x", "-1", "99999999999", "1.5", " 1", "0x1", "65536000"}) {
        const std::string message = error(with(variables, name, value));
        EXPECT_THAT(message, HasSubstr(name));
        EXPECT_THAT(message, HasSubstr(value));
      }
    }
  }
  EXPECT_THAT(error(with(kTorch, "RANK", "8")), HasSubstr("RANK wants a whole number from 0 to 7"));
  EXPECT_THAT(error(with(kTorch, "WORLD_SIZE", "0")), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(error(with(kOwn, "LOCKSTEP_STORE", "localhost:0")), HasSubstr("LOCKSTEP_STORE"));
}

TEST_F(WorldTest, TheDefaultTimeoutIsReadFromOneVariable) {
  EXPECT_EQ(default_timeout(), milliseconds(600'000));
  setenv("LOCKSTEP_TIMEOUT", "2.5", 1);
  EXPECT_EQ(default_timeout(), milliseconds(2500));
  setenv("LOCKSTEP_TIMEOUT", "0.0001", 1);
  EXPECT_EQ(default_timeout(), milliseconds(1));
  for (const char* value : {"0", "-3", "x", "5s", "nan", "inf", "1e9"}) {
    setenv("LOCKSTEP_TIMEOUT", value, 1);
    try {
      default_timeout();
      ADD_FAILURE() << value;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("LOCKSTEP_TIMEOUT"));
      EXPECT_THAT(error.what(), HasSubstr(value));
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
