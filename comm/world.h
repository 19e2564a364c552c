#pragma once

#include <chrono>
#include <string>

namespace lockstep::comm {

// Who this process is in its job, and where the job meets. Plain data: a test may fill it in.
struct World {
  int rank = 0;  // in [0, size)
  int size = 1;
  int local_rank = 0;  // among the ranks of this host, in [0, local_size)
  int local_size = 1;

  // Where the store is. Port 0 has a meaning only for a world of one rank: any free port.
  std::string store_host = "127.0.0.1";
  int store_port = 0;
  // True where the launcher already runs the store; otherwise rank 0 does (Store::connect).
  bool store_hosted = false;

  // The job's secret. Empty is allowed (torchrun and MPI have none to give): then any process that
  // reaches the store's port can join, as with PyTorch's own store.
  std::string token;
  // Names the job: two jobs that meet on one port refuse each other. Not a secret; may be empty.
  std::string job;
};

// Reads the first of these that is there:
//   1. Lockstep's launcher: LOCKSTEP_RANK, LOCKSTEP_WORLD_SIZE, LOCKSTEP_LOCAL_RANK,
//      LOCKSTEP_LOCAL_WORLD_SIZE, LOCKSTEP_STORE=host:port, LOCKSTEP_STORE_HOSTED=1
//   2. torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   3. Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   4. PMI (MPICH, Intel MPI): PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//   5. Slurm's srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID,
//      SLURM_STEP_TASKS_PER_NODE, SLURM_STEP_NODELIST or SLURM_JOB_NODELIST
//   6. nothing: one rank.
// LOCKSTEP_TOKEN and LOCKSTEP_JOB belong to every one of them. LOCKSTEP_STORE may name the store
// for 2 to 5 too. Without it the store is at MASTER_ADDR:MASTER_PORT, one port higher where
// torchrun's own store holds that port (TORCHELASTIC_USE_AGENT_STORE=True); failing these, for 3
// to 5, on this host if all ranks are on it (Slurm: on its first host), at a port in
// [20000, 30000) made from the job's id.
// Local places that nothing tells: all ranks are on this host where the store is on loopback,
// otherwise this rank is taken to be alone on its host.
//
// An empty value counts as not set. Throws kInvalidArgument naming the variable where a source is
// half there or a value has no meaning.
World world_from_environment();

// How long a wait for other ranks lasts where the caller did not say: LOCKSTEP_TIMEOUT in seconds
// (fractions allowed, over 0 and at most 10 million), else 600 s. Throws kInvalidArgument for
// anything else. This is the one place that reads the variable.
std::chrono::milliseconds default_timeout();

}  // namespace lockstep::comm
