// A group under the variables of every launcher: three ranks that find each other by these alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/socket.h"
#include "lockstep/comm/text.h"

namespace lockstep {
namespace {

using comm::concat;

constexpr int kRanks = 3;

struct Launcher {
  std::string name;
  // The variables of a rank, given a free port and a job's name of this test's own.
  std::string (*variables)(int rank, int port, const std::string& job);
};

const Launcher kLaunchers[] = {
    {"torchrun",
     [](int rank, int port, const std::string&) {
       return concat("RANK=", rank, " WORLD_SIZE=3 LOCAL_RANK=", rank,
                     " LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=", port);
     }},
    {"torchrun_with_its_own_store_on_the_port",
     [](int rank, int port, const std::string& job) {
       return concat("RANK=", rank, " WORLD_SIZE=3 LOCAL_RANK=", rank,
                     " LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=", port - 1,
                     " TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=", job);
     }},
    {"mpirun",
     [](int rank, int, const std::string& job) {
       return concat("OMPI_COMM_WORLD_RANK=", rank, " OMPI_COMM_WORLD_SIZE=3",
                     " OMPI_COMM_WORLD_LOCAL_RANK=", rank, " OMPI_COMM_WORLD_LOCAL_SIZE=3",
                     " PMIX_NAMESPACE=", job);
     }},
    {"mpirun_with_a_named_store",
     [](int rank, int port, const std::string&) {
       return concat("OMPI_COMM_WORLD_RANK=", rank, " OMPI_COMM_WORLD_SIZE=3",
                     " LOCKSTEP_STORE=127.0.0.1:", port, " LOCKSTEP_TOKEN=t");
     }},
    {"mpiexec_of_MPICH",
     [](int rank, int port, const std::string&) {
       return concat("PMI_RANK=", rank, " PMI_SIZE=3 MPI_LOCALRANKID=", rank,
                     " MPI_LOCALNRANKS=3 LOCKSTEP_STORE=127.0.0.1:", port);
     }},
    {"srun",
     [](int rank, int, const std::string& job) {
       return concat("SLURM_PROCID=", rank, " SLURM_NTASKS=3 SLURM_LOCALID=", rank,
                     " SLURM_NODEID=0 SLURM_TASKS_PER_NODE=3 SLURM_JOB_NODELIST=localhost",
                     " SLURM_JOB_ID=", job);
     }},
    {"lockstep_run",
     [](int rank, int port, const std::string& job) {
       return concat("LOCKSTEP_RANK=", rank, " LOCKSTEP_WORLD_SIZE=3 LOCKSTEP_LOCAL_RANK=", rank,
                     " LOCKSTEP_LOCAL_WORLD_SIZE=3 LOCKSTEP_STORE=127.0.0.1:", port,
                     " LOCKSTEP_TOKEN=secret LOCKSTEP_JOB=", job);
     }},
};

class Launchers : public testing::TestWithParam<Launcher> {};

INSTANTIATE_TEST_SUITE_P(All, Launchers, testing::ValuesIn(kLaunchers),
                         [](const auto& launcher) { return launcher.param.name; });

TEST_P(Launchers, TheirVariablesAreEnoughForAGroup) {
  const int port = comm::local_port(comm::listen_tcp("127.0.0.1", 0, "test"));
  const std::string job = concat(::getpid(), ".", port);
  std::vector<FILE*> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string command = concat("env -i ", GetParam().variables(rank, port, job),
                                       " LOCKSTEP_TIMEOUT=60 ", GROUP_RANK, " reduce 2>&1");
    ranks.push_back(::popen(command.c_str(), "r"));
    ASSERT_NE(ranks.back(), nullptr);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    std::string out;
    char line[512];
    while (::fgets(line, sizeof line, ranks[static_cast<size_t>(rank)]) != nullptr) out += line;
    EXPECT_EQ(::pclose(ranks[static_cast<size_t>(rank)]), 0) << out;
    EXPECT_EQ(out, concat("rank ", rank, " of 3: sum 6 over shm\n"));
  }
}

}  // namespace
}  // namespace lockstep
