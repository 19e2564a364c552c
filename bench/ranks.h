#pragma once

#include <functional>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace bench {

// Runs fn as each rank and returns the exit status of the program: 0 where fn returned 0 on all.
// Within a launcher's job this process is one of its ranks. Otherwise it starts n: threads for
// transport "thread", else processes, forks of this one, which ends with rank 0's. options.device
// is not used: `devices` has one for all ranks, or one for each; with another number of them it
// throws Error(kInvalidArgument).
//
// REQUIRES: no threads were started yet, and no device was used.
int run_as_ranks(int n, const std::vector<lockstep::Device>& devices,
                 const lockstep::comm::Options& options,
                 const std::function<int(lockstep::comm::Communicator&)>& fn);

}  // namespace bench
