#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/nn/checkpoint/state.h"

namespace lockstep::nn {

// A checkpoint that was read and verified in full; nothing has been loaded from it yet.
struct Snapshot {
  std::filesystem::path path;
  int64_t step = 0;
  std::string run;
  std::vector<std::string> skipped;  // damaged ones that were passed over, and how
  // The index as it was read, with the place where the tensors' data ends: other ranks decode it.
  std::string index_text;
  uint64_t data_end = 0;
  Contents contents;
};

// Reads the checkpoint at `path`. Throws Error(kCorrupt), Error(kMismatch), Error(kIo),
// Error(kOutOfMemory).
Snapshot read_snapshot(const std::filesystem::path& path);

// The newest in `folder` that verifies. A snapshot without a path if there is no checkpoint. Throws
// as load_latest.
Snapshot read_latest(const std::filesystem::path& folder);

// Collective. Every rank gets rank 0's.
void share_snapshot(comm::Communicator* group, Snapshot& snapshot);

}  // namespace lockstep::nn
