#pragma once

#include <string>

// What one rank of bench_train's jobs does.
//
// Its job goes through rounds of three phases, each of which every rank begins together, so that a
// machine that slows down slows all of them:
//
//   one       rank 0 trains alone, wrapped at world size 1; the others sleep in a barrier
//   apart     every rank trains alone, plain modules, unwrapped: what memory, caches and cores that
//             are shared leave of N times one rank, with any library
//   together  every rank trains one model, wrapped
namespace bench {

struct RankOptions {
  std::string model;
  int batch = 128;  // of each rank
  int steps = 10;   // timed in each phase, after one that is not
  int rounds = 3;
  bool sync_batch_norm = true;
};

// Trains as one rank of the job in Lockstep's environment, and writes a line for each phase of each
// round to standard output: the phase, the seconds of its steps together, and their median.
void run_rank(const RankOptions& options);

}  // namespace bench
