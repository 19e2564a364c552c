#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
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

// Where that of `step` is while it is written: "step-00000123.tmp".
std::filesystem::path temporary_path(const std::filesystem::path& folder, int64_t step);

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
  int keep = 0;            // how many checkpoints of the run stay, with this one; 0: all
  int64_t keep_every = 0;  // those of steps that are a multiple of this stay too; 0: none
};

// A checkpoint that is being written into `folder`, which is made where it is missing.
//
//   CheckpointSave save(disk, folder, request);   // one rank
//   write_data_file(disk, save.directory() / data_file_name(i), …);   // any rank, for each file
//   save.finish(summaries, warn);
//
// At any instant, whatever fails, the folder holds all the checkpoints that it held, until the new
// one is durable; that is when finish() returns. Nothing is removed that has not a checkpoint's
// names throughout. One that is not finished is removed by the destructor; so nobody writes into it
// any more by then.
class CheckpointSave {
 public:
  // Locks the folder and makes the temporary directory. Throws Error(kIo) where the disk fails or
  // another job is saving there, Error(kInvalidArgument) where the folder holds checkpoints of
  // another run; then nothing was changed but that the folder was made.
  CheckpointSave(Disk& disk, std::filesystem::path folder, SaveRequest request);
  ~CheckpointSave();
  CheckpointSave(const CheckpointSave&) = delete;
  CheckpointSave& operator=(const CheckpointSave&) = delete;

  // Where the data files go, temporary_path().
  const std::filesystem::path& directory() const { return temporary_; }
  // Gives it its name, durably. It replaces one of the same step and run; what else is in its place
  // is moved aside. Then removes older checkpoints of the run, and what dead writers left. `files`
  // are the data files, in order. Throws Error(kIo); `warn` gets what went wrong after the
  // checkpoint was durable.
  void finish(const std::vector<FileSummary>& files,
              const std::function<void(const std::string&)>& warn);

 private:
  void write_manifest(const std::vector<FileSummary>& files);
  bool publish();
  void put_away(bool same_step);
  void remove_older();

  Disk& disk_;
  std::filesystem::path folder_;
  SaveRequest request_;
  std::unique_ptr<DirectoryLock> lock_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  uint64_t serial_ = 0;
  bool replaces_ = false;  // a checkpoint of the same step
  bool finished_ = false;
};

// Removes the checkpoints of a folder, damaged ones that have no other files included, and what
// dead writers left.
void remove_all_checkpoints(Disk& disk, const std::filesystem::path& folder);

}  // namespace lockstep::nn
