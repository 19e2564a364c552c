#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/random.h"
#include "lockstep/core/tensor.h"
#include "lockstep/nn/data/data_loader.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/schedule.h"

// Saving and loading a training run:
//
//   int64_t epoch = 0;
//   TrainingState state;                    // once, for the whole run
//   state.add("model", *net);
//   state.add("optimizer", optimizer);
//   state.add("schedule", schedule);
//   state.add("loader", loader);
//   state.add("epoch", epoch);
//   load_latest("out", state);              // goes on where the last run ended, if there was one
//   …
//   save_checkpoint("out", step, state);    // returns when it is safe on the disk
//
// The ranks of a group call these together and pass the group: one writes, one reads, and all
// return with the same values or the same error. docs/checkpoint-format.md specifies the files.
namespace lockstep::nn {

class Disk;
class StatePart;

// What belongs to a run, each under a name of its own. It borrows what is added, which must outlive
// it. One object stands for one run from its start to its end; loading makes it the run that was
// loaded. The random numbers of default_generator() belong to every run and need not be added.
//
// Thread safety: none; every rank has its own, with the same names.
class TrainingState {
 public:
  TrainingState();
  ~TrainingState();
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  // Each throws Error(kInvalidArgument) for a name that is empty, taken or holds a '/'.

  // Parameters and persistent buffers. A wrapped module (DataParallel) has the same names as a bare
  // one, so that each loads what the other saved.
  void add(std::string name, Module& module);
  void add(std::string name, Optimizer& optimizer);
  void add(std::string name, Schedule& schedule);
  void add(std::string name, DataLoader& loader);
  // Each rank's own. A run that goes on with more ranks leaves the seeds of the new ones as they
  // are, and moves them to the furthest offset that was saved.
  void add(std::string name, Generator& generator);
  void add(std::string name, Tensor& tensor);
  // Rank 0's value is saved; every rank gets it.
  void add(std::string name, int64_t& value);
  void add(std::string name, uint64_t& value);
  void add(std::string name, double& value);
  void add(std::string name, std::string& value);  // UTF-8

 private:
  friend struct StateAccess;

  void add_part(std::unique_ptr<StatePart> part);
  void check_name(const std::string& name) const;

  std::vector<std::unique_ptr<StatePart>> parts_;
  std::vector<std::pair<std::string, Generator*>> generators_;
  std::string run_;  // 32 hexadecimal digits
};

struct CheckpointOptions {
  // How many checkpoints of this run stay, with the new one; 0: all.
  int keep = 3;
  // The ranks that save together; rank 0 writes. Null: this process alone.
  comm::Communicator* group = nullptr;
  // Gets what went wrong after the checkpoint was safe. By default it is printed to stderr.
  std::function<void(const std::string&)> warn = {};
  // For tests; null: the real one.
  Disk* disk = nullptr;
};

// Collective over options.group. Writes `folder`/step-00000123 for step 123, and returns on every
// rank once it is durable: files, names and folders are synced. Until then the folder holds what it
// held before, whatever happens; a reader sees the old checkpoints or the new one, never a part.
//
// Throws on every rank, the same error: Error(kIo) where the disk fails or is full, or another job
// is saving into the folder; Error(kInvalidArgument) where the folder holds checkpoints of another
// run, or a name or string cannot be saved; Error(kMismatch) where ranks disagree about the step or
// the names.
void save_checkpoint(const std::filesystem::path& folder, int64_t step, const TrainingState& state,
                     const CheckpointOptions& options = {});

struct LoadOptions {
  // Strict: anything missing, unexpected or mismatched is an Error(kMismatch) that lists all of it.
  // Otherwise what matches is loaded, and the report lists the rest.
  bool strict = true;
  // The ranks that load together: rank 0 reads, the others get it from there. Null: this process
  // alone.
  comm::Communicator* group = nullptr;
  // Gets a line for each damaged checkpoint that was passed over. By default it is printed to
  // stderr. Called on rank 0.
  std::function<void(const std::string&)> warn = {};
};

// What a load did. Names are those of the checkpoint, "model/features.0.weight".
struct LoadReport {
  std::filesystem::path path;  // the checkpoint; empty for a state dict
  int64_t step = 0;
  int64_t loaded = 0;                   // tensors and values
  std::vector<std::string> missing;     // wanted, but not in the checkpoint
  std::vector<std::string> unexpected;  // in the checkpoint, but not wanted
  std::vector<std::string> mismatched;  // of another shape, dtype or kind: "…: want …, got …"
  std::vector<std::string> skipped;     // damaged checkpoints that were passed over, and how
  bool prefix_changed = false;          // "module." was removed from, or put before, every name
};

// Collective over options.group. Loads the newest checkpoint in `folder` that verifies; nullopt if
// the folder has none or does not exist. It warns about each damaged one that it passes over.
//
// Nothing in `state` changes before every rank knows that the whole load will succeed. Tensors are
// written in place, so that optimisers and DataParallel go on with them.
//
// Throws on every rank, the same error: Error(kCorrupt) where there are checkpoints and all are
// damaged, with all the reasons; Error(kMismatch) where the newest does not fit `state`, or, not
// strict, nothing of it does, or it was written by a later version; Error(kIo); and
// Error(kInvalidArgument) where the folder holds checkpoints of several runs.
std::optional<LoadReport> load_latest(const std::filesystem::path& folder, TrainingState& state,
                                      const LoadOptions& options = {});

// Collective over options.group. Loads the checkpoint at `path`, "out/step-00000123". Throws as
// load_latest; a damaged one is an Error(kCorrupt).
LoadReport load_checkpoint(const std::filesystem::path& path, TrainingState& state,
                           const LoadOptions& options = {});

// The tensors that a module saves: parameters, then persistent buffers. They are its own.
NamedTensors state_dict(const Module& module);

// The tensors that the checkpoint at `path` has under `part`, without its name.
NamedTensors read_state_dict(const std::filesystem::path& path, std::string_view part = "model");

// Copies tensors into a module by name. Where all names of one side, and not of the other, begin
// with "module." (which PyTorch's DistributedDataParallel adds), they match without it. Throws
// Error(kMismatch) before anything is changed: strict, for any difference; otherwise if no name
// matches.
LoadReport load_state_dict(Module& module, const NamedTensors& tensors, bool strict = true);

// Removes the checkpoints in a folder, for a new run in an old place. Files that are not a
// checkpoint's stay.
void remove_checkpoints(const std::filesystem::path& folder);

}  // namespace lockstep::nn
