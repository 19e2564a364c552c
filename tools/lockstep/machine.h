#pragma once

namespace lockstep::cli {

// Prints what this machine has for a job and what would be in its way. Where this process is a
// rank of a job, its rank 0 also prints which transport each pair of ranks would use; the others
// print nothing. Returns 0, or 1 where something that a job needs does not work.
int describe_machine();

}  // namespace lockstep::cli
