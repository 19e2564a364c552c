#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/nn/checkpoint/state.h"

namespace lockstep::nn {

// A checkpoint that was read and verified; nothing has been loaded from it yet.
struct Snapshot {
  std::filesystem::path path;
  int64_t step = 0;
  std::string run;
  int world_size = 1;                // how many ranks saved it
  std::string written;               // UTC, "2026-01-31T12:00:00Z"
  std::string writer;                // "lockstep 0.1.0"
  std::vector<std::string> skipped;  // damaged ones that were passed over, and how
  // Each file's index as it was read, with the place where its tensors' data ends: other ranks
  // decode it.
  struct IndexText {
    std::string text;
    uint64_t data_end = 0;
  };
  std::vector<IndexText> indexes;
  // The tensors as they are stored, each element once; those of `contents` are the same memory.
  std::vector<Tensor> stored;
  Contents contents;
};

// Reads the checkpoint at `path`. Throws Error(kCorrupt), Error(kMismatch), Error(kIo),
// Error(kOutOfMemory).
Snapshot read_snapshot(const std::filesystem::path& path, const ReadOptions& options = {});

struct SharedReadOptions {
  comm::Communicator* group = nullptr;
  // Each rank reads; otherwise rank 0, and the others get it from there.
  bool all_read = false;
  ReadOptions read;
};

// Collective. The checkpoint at `path`, the same on every rank. Throws on every rank.
Snapshot read_snapshot_together(const std::filesystem::path& path,
                                const SharedReadOptions& options);

// Collective. The newest in `folder` that verifies on every rank that reads. A snapshot without a
// path if there is no checkpoint. Throws as load_latest, on every rank.
Snapshot read_latest_together(const std::filesystem::path& folder,
                              const SharedReadOptions& options);

}  // namespace lockstep::nn
