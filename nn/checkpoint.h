#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/random.h"
#include "lockstep/core/tensor.h"
#include "lockstep/nn/data/data_loader.h"
#include "lockstep/nn/data/sampler.h"
#include "lockstep/nn/ema.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/optim.h"

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
struct SaveJob;

// A thing whose state is numbers by name: a schedule, a gradient scaler, one of the program's own.
// Loading throws an Error before it changes anything, or not at all.
template <class T>
concept HasNumberState = requires(T& thing, const T& same, const NamedNumbers& numbers) {
  { same.named_state() } -> std::same_as<NamedNumbers>;
  thing.load_named_state(numbers);
};

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
  // Of a ShardedOptimizer the state in full, so that saving is collective in its group too; it
  // loads at any world size, and as the optimiser that it was made from.
  void add(std::string name, Optimizer& optimizer);
  void add(std::string name, HasNumberState auto& thing) {
    add_numbers(
        std::move(name), [&thing] { return thing.named_state(); },
        [&thing](const NamedNumbers& numbers) { thing.load_named_state(numbers); });
  }
  // The averages and how many updates they have seen; those of the averages, where it is swapped.
  void add(std::string name, ExponentialMovingAverage& average);
  void add(std::string name, DataLoader& loader);
  // Its place, for those who read it by next(); a DataLoader sets its sampler's itself.
  void add(std::string name, Sampler& sampler);
  // Each rank's own. A run that goes on with more ranks leaves the seeds of the new ones as they
  // are, and moves them to the furthest offset that was saved.
  void add(std::string name, Generator& generator);
  // Loaded in place, or defined by the load where it is undefined.
  void add(std::string name, Tensor& tensor);
  // Loaded in place: moving averages, say. They stay the same tensors.
  void add(std::string name, NamedTensors tensors);
  // Rank 0's value is saved; every rank gets it.
  void add(std::string name, int64_t& value);
  void add(std::string name, uint64_t& value);
  void add(std::string name, double& value);
  void add(std::string name, std::string& value);  // UTF-8

 private:
  friend struct StateAccess;

  void add_part(std::unique_ptr<StatePart> part);
  void add_numbers(std::string name, std::function<NamedNumbers()> get,
                   std::function<void(const NamedNumbers&)> set);
  void check_name(const std::string& name) const;

  std::vector<std::unique_ptr<StatePart>> parts_;
  std::vector<std::pair<std::string, Generator*>> generators_;
  std::string run_;  // 32 hexadecimal digits
};

struct CheckpointOptions {
  // How many checkpoints of this run stay, with the new one; 0: all.
  int keep = 3;
  // Those of steps that are a multiple of this stay besides; 0: none.
  int64_t keep_every = 0;
  // The ranks that save together; rank 0 writes. Null: this process alone.
  comm::Communicator* group = nullptr;
  // Each rank writes a file with its share of the values, all at once. `folder` is one that all
  // ranks share. Loads at any number of ranks.
  bool sharded = false;
  // Whether the save waits until everything is on the disk. Without it a save is as fast as memory,
  // and the end of a process still loses nothing; when the machine fails, checkpoints of its last
  // seconds may be damaged, and load_latest goes back to one that is whole.
  bool sync_files = true;
  // Gets what went wrong after the checkpoint was safe. By default it is printed to stderr.
  std::function<void(const std::string&)> warn = {};
  // For tests; null: the real one.
  Disk* disk = nullptr;
};

// Collective over options.group. Writes `folder`/step-00000123 for step 123, and returns on every
// rank once it is durable: files, names and folders are synced, unless options say not to. Until
// then the folder holds what it held before, whatever happens; a reader sees the old checkpoints or
// the new one, never a part.
//
// Throws on every rank, the same error: Error(kIo) where the disk fails or is full, or another job
// is saving into the folder; Error(kInvalidArgument) where the folder holds checkpoints of another
// run, or a name or string cannot be saved; Error(kMismatch) where ranks disagree about the step or
// the names.
void save_checkpoint(const std::filesystem::path& folder, int64_t step, const TrainingState& state,
                     const CheckpointOptions& options = {});

// Saves while training goes on: save() copies the values and returns, and a thread writes them.
//
//   AsyncCheckpointer saver("out", {.group = group.get()});
//   …
//   saver.save(step, state);   // as often as wanted
//   …
//   saver.wait();              // the last one is durable
//
// One save is in flight at most: the next call waits for it. What went wrong in it is thrown by the
// next call, the same error on every rank, and that call does nothing else.
//
// All calls, the constructor and the destructor are collective over options.group, which must
// outlive this object. The writing has a duplicate of it, so as not to stand in the way of
// training's collectives. Used from one thread; options.warn and options.disk are used from
// another.
class AsyncCheckpointer {
 public:
  explicit AsyncCheckpointer(std::filesystem::path folder, CheckpointOptions options = {});
  // Waits for the save in flight. What went wrong goes to options.warn.
  ~AsyncCheckpointer();
  AsyncCheckpointer(const AsyncCheckpointer&) = delete;
  AsyncCheckpointer& operator=(const AsyncCheckpointer&) = delete;

  // As save_checkpoint, but returns once the values are copied: `state` may change. Needs as much
  // memory again as what this rank writes.
  void save(int64_t step, const TrainingState& state);
  // Returns once the last save is durable.
  void wait();

 private:
  void join();

  std::filesystem::path folder_;
  CheckpointOptions options_;
  std::shared_ptr<comm::Communicator> background_;
  std::thread thread_;
  std::unique_ptr<const SaveJob> job_;  // in flight
  std::exception_ptr error_;            // of this rank; written by thread_
};

struct LoadOptions {
  // Strict: anything missing, unexpected or mismatched is an Error(kMismatch) that lists all of it.
  // Otherwise what matches is loaded, and the report lists the rest.
  bool strict = true;
  // Names are those of the checkpoint, "model/features.0.weight". One that begins with the first
  // text of a rule gets the second in its place; the first rule that fits counts.
  std::vector<std::pair<std::string, std::string>> rename = {};
  // Load what has a name, after renaming, that begins with one of these, and leave the rest as it
  // is: {"model/features."}. Empty: everything.
  std::vector<std::string> only = {};
  // The ranks that load together. Null: this process alone.
  comm::Communicator* group = nullptr;
  // Rank 0 reads, and the others get it from there: for disks that are slow or that rank 0 alone
  // has. Otherwise each rank reads for itself, and all find out whether it was the same.
  bool every_rank_reads = false;
  // Read through the memory of the system's file cache, which saves a copy. For files that nobody
  // cuts while they are read: that would end the process.
  bool mmap = false;
  // Gets a line for each damaged checkpoint that was passed over. By default it is printed to
  // stderr. Called on rank 0.
  std::function<void(const std::string&)> warn = {};
};

// What a load did. Names are those of the checkpoint, "model/features.0.weight".
struct LoadReport {
  std::filesystem::path path;  // the checkpoint; empty for a state dict
  int64_t step = 0;
  int world_size = 0;                   // how many ranks saved it
  std::string written;                  // when, UTC: "2026-01-31T12:00:00Z"
  std::string writer;                   // by what: "lockstep 0.1.0"
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

struct ReadOptions {
  // The tensors are the file's own pages, which are read from the disk as they are touched; changes
  // to them stay in memory. For files that nobody cuts while the tensors live: touching what is
  // gone would end the process. Tensors that several ranks wrote a part of are read as usual.
  bool mmap = false;
  // Compare the data with its checksums. Everything else is verified in any case. Without it a
  // mapped file is read in no time, and damage in the data goes unseen.
  bool verify = true;
};

// The tensors that the checkpoint at `path` has under `part`, without its name. Tensors that shared
// elements when they were saved share them again.
NamedTensors read_state_dict(const std::filesystem::path& path, std::string_view part = "model",
                             const ReadOptions& options = {});

// Copies tensors into a module by name. Where all names of one side, and not of the other, begin
// with "module." (which PyTorch's DistributedDataParallel adds), they match without it. Throws
// Error(kMismatch) before anything is changed: strict, for any difference; otherwise if no name
// matches.
LoadReport load_state_dict(Module& module, const NamedTensors& tensors, bool strict = true);

// Removes the checkpoints in a folder, for a new run in an old place. Files that are not a
// checkpoint's stay.
void remove_checkpoints(const std::filesystem::path& folder);

}  // namespace lockstep::nn
