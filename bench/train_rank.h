#pragma once

#include <string>
#include <vector>

#include "lockstep/kernels/device.h"
#include "lockstep/kernels/dtype.h"

// What one rank of bench_train's jobs does.
//
// A job goes through turns of three phases, each of which every rank begins together, so that a
// machine that slows down slows all of them:
//
//   one       rank 0 trains alone, wrapped at world size 1; the others sleep in a barrier
//   apart     every rank trains alone, plain modules, unwrapped: what memory, caches and cores that
//             are shared leave of N times one rank, with any library
//   together  every rank trains one model, wrapped
namespace bench {

struct RankOptions {
  std::string task;  // of train_models.h
  int batch = 128;   // of each rank
  int tokens = 0;    // of a sample; 0 where it has none
  int steps = 10;    // timed in each phase, after one that is not
  int turns = 3;
  bool sync_batch_norm = true;
  std::vector<lockstep::Device> devices = {lockstep::kCpu};  // one for all ranks, or for each
  lockstep::DType dtype = lockstep::DType::kF32;             // kBF16: by Autocast; weights stay f32

  bool on_device() const { return devices[0].is_cuda(); }
  lockstep::Device device_of(int rank) const {
    return devices[static_cast<size_t>(rank) % devices.size()];
  }
};

// Trains as one rank of the job in Lockstep's environment, and writes lines to standard output. For
// each phase of each turn: the phase, the seconds of its steps together, and their median. On rank
// 0 besides, as name and value: `parameters`, their number; `memory`, the bytes that the process
// grew by until its steps ran. On the CPU, `in_kernels`, the fraction of a step of one rank; on a
// device, `device_memory`, the most bytes that were in use there until then.
//
// The time of steps on a device is that between two waits for it, with none between them, as in
// training; their median is their mean.
void run_rank(const RankOptions& options);

// Trains together alone, for a timeline: `steps` steps after those in which buckets get their
// layout. Writes nothing.
void run_together(const RankOptions& options);

// Measures, on each rank of a group of 2 and more, what DataParallel costs by itself, and writes
// names and values, times in seconds. `wrapper`: of a step of the mlp in a group of one, what the
// wrapper adds, as a fraction. `iteration`: forward and backward of a model with `small_parameters`
// parameters of 16 elements in the whole group, less the same unwrapped; `collectives`: the
// all-reduce of their bucket and that of the agreement, alone; `agreement`: the second of these.
void run_costs(int repetitions);

}  // namespace bench
