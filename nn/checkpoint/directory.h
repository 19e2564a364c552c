#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/nn/checkpoint/disk.h"
#include "lockstep/nn/checkpoint/format.h"
#include "lockstep/nn/checkpoint/manifest.h"

// A folder of checkpoints: step-00000123/ is one that is complete, step-00000123.tmp/ one that is
// being written, or was when its writer died, `latest` names the newest for people and scripts.
namespace lockstep::nn {

// "step-00000123".
std::string checkpoint_name(int64_t step);

// A complete checkpoint, as far as its name says.
struct StoredCheckpoint {
  std::filesystem::path path;
  int64_t step = 0;                  // by its name
  std::optional<Manifest> manifest;  // none where it is damaged
  std::string damage;                // then this says what is wrong
};

// The checkpoints in a folder: those whose manifest verifies, newest first, then damaged ones, the
// greatest step first. Their data is not read. Empty where there is no such folder. Throws
// Error(kIo) where something cannot be read for a reason other than damage, Error(kMismatch) where
// a checkpoint is of a later version.
std::vector<StoredCheckpoint> find_checkpoints(const std::filesystem::path& folder);

struct SaveRequest {
  int64_t step = 0;
  std::string run;
  int world_size = 1;
  int keep = 0;  // how many checkpoints of the run stay, with this one; 0: all
  std::span<const TensorBytes> tensors;
  std::span<const NamedValue> values;
};

// Writes a checkpoint into `folder`, which is made where it is missing. When this returns, the
// checkpoint is durable. It replaces one of the same step and run; what else is in its place is
// moved aside. Then removes older checkpoints of the run, and what dead writers left.
//
// At any instant, whatever fails, the folder holds all the checkpoints that it held, until the new
// one is durable. Nothing is removed that has not a checkpoint's names throughout.
//
// Throws Error(kIo) where the disk fails, Error(kInvalidArgument) where the folder holds
// checkpoints of another run. `warn` gets what went wrong after the checkpoint was durable.
void write_checkpoint(Disk& disk, const std::filesystem::path& folder, const SaveRequest& request,
                      const std::function<void(const std::string&)>& warn);

// Removes the checkpoints of a folder, damaged ones that have no other files included, and what
// dead writers left.
void remove_all_checkpoints(Disk& disk, const std::filesystem::path& folder);

}  // namespace lockstep::nn
