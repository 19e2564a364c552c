#include "lockstep/nn/checkpoint.h"

#include <cstdio>
#include <utility>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/directory.h"
#include "lockstep/nn/checkpoint/save.h"
#include "lockstep/nn/checkpoint/snapshot.h"
#include "lockstep/nn/checkpoint/state.h"
#include "lockstep/nn/checkpoint/together.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using Warn = std::function<void(const std::string&)>;

void print_warning(const std::string& text) {
  std::fprintf(stderr, "lockstep: warning: %s\n", text.c_str());
}

Warn warn_or_print(const Warn& warn) { return warn ? warn : Warn(print_warning); }

SharedReadOptions read_options(const LoadOptions& options) {
  SharedReadOptions result;
  result.group = options.group;
  result.all_read = options.every_rank_reads;
  result.read.mmap = options.mmap;
  return result;
}

// Collective.
LoadReport load(std::string_view op, const Snapshot& snapshot, TrainingState& state,
                const LoadOptions& options) {
  const int rank = rank_of(options.group);
  if (rank == 0) {
    for (const std::string& line : snapshot.skipped) {
      warn_or_print(options.warn)(str_cat("passed over a damaged checkpoint: ", line));
    }
  }
  LoadPlan plan;
  together(options.group, op, [&] {
    plan = StateAccess::plan(state, select_contents(snapshot.contents, options), rank);
    plan.keep_only(options.only);
    plan.report.path = snapshot.path;
    plan.report.step = snapshot.step;
    plan.report.world_size = snapshot.world_size;
    plan.report.written = snapshot.written;
    plan.report.writer = snapshot.writer;
    plan.report.skipped = snapshot.skipped;
    plan.check(options.strict);
  });
  together(options.group, op, [&] { plan.apply(); });
  // What is loaded in part, or under other names, is the start of another run.
  if (options.only.empty() && options.rename.empty()) {
    StateAccess::set_run(state, snapshot.run);
  }
  return plan.report;
}

}  // namespace

void save_checkpoint(const fs::path& folder, int64_t step, const TrainingState& state,
                     const CheckpointOptions& options) {
  prepare_save(folder, step, state, options).run(options.group);
}

std::optional<LoadReport> load_latest(const fs::path& folder, TrainingState& state,
                                      const LoadOptions& options) {
  const Snapshot snapshot = read_latest_together(folder, read_options(options));
  if (snapshot.path.empty()) return std::nullopt;
  return load("load_latest", snapshot, state, options);
}

LoadReport load_checkpoint(const fs::path& path, TrainingState& state, const LoadOptions& options) {
  const Snapshot snapshot = read_snapshot_together(path, read_options(options));
  return load("load_checkpoint", snapshot, state, options);
}

NamedTensors read_state_dict(const fs::path& path, std::string_view part,
                             const ReadOptions& options) {
  Snapshot snapshot = read_snapshot(path, options);
  const std::string prefix = str_cat(part, "/");
  NamedTensors tensors;
  for (auto& [name, tensor] : snapshot.contents.tensors) {
    if (name.starts_with(prefix)) tensors.emplace_back(name.substr(prefix.size()), tensor);
  }
  check(!tensors.empty(), "read_state_dict",
        [&] { return str_cat(path.string(), " has no tensors under '", part, "'"); });
  return tensors;
}

LoadReport load_state_dict(Module& module, const NamedTensors& tensors, bool strict) {
  LoadPlan plan;
  plan_module(module, "", tensors, plan);
  plan.check(strict);
  plan.apply();
  return plan.report;
}

void remove_checkpoints(const fs::path& folder) {
  Disk disk;
  remove_all_checkpoints(disk, folder);
}

}  // namespace lockstep::nn
