#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/kernels/stream.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/checkpoint/directory.h"
#include "lockstep/nn/checkpoint/format.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// A save whose contents are known; nothing is written yet.
struct SaveJob {
  std::filesystem::path folder;
  SaveRequest request;
  NamedTensors tensors;  // as they are stored, each element once
  std::vector<StoredView> views;
  std::vector<NamedValue> values;
  CheckpointOptions options;

  // Makes the tensors copies in the host's memory, so that training may change its own: those of
  // which this rank of `group` writes something. Local. What lies on devices is copied behind what
  // is on their current streams, and run() waits for it.
  void copy_tensors(const comm::Communicator* group);
  // Collective over `group`, the ranks that prepared it. Returns once the checkpoint is durable, or
  // throws the same error on every rank.
  void run(comm::Communicator* group) const;

 private:
  std::vector<Event> copied_;  // on each device

  int shards(const comm::Communicator* group) const;
  FileSummary write_shard(Disk& disk, int shard, int shards) const;
};

// Collective over options.group. Checks arguments, and that all ranks save the same things. Throws
// as save_checkpoint.
SaveJob prepare_save(const std::filesystem::path& folder, int64_t step, const TrainingState& state,
                     const CheckpointOptions& options);

}  // namespace lockstep::nn
