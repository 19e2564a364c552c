// The part of the trainer that lets a run be interrupted: what it saves, and how it goes on.
#include <cstdio>
#include <filesystem>
#include <vector>

#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint.h"
#include "trainer.h"

namespace fs = std::filesystem;
namespace nn = lockstep::nn;
using lockstep::Error;
using lockstep::ErrorCode;
using lockstep::str_cat;

namespace {

// Whether a run writes a file or folder of this name.
bool belongs_to_a_run(const std::string& name) {
  return name.starts_with("step-") || name == "latest" || name == "metrics.csv" ||
         name == "curves.svg";
}

// Makes room for a new run without losing the last one: its files move to DIR/earlier-1, or the
// first of these numbers that is free. Returns where they went; empty where there were none.
fs::path move_earlier_run(const fs::path& directory) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (belongs_to_a_run(entry.path().filename().string())) found.push_back(entry.path());
  }
  if (found.empty()) return {};
  int number = 1;
  while (fs::exists(directory / str_cat("earlier-", number))) ++number;
  const fs::path target = directory / str_cat("earlier-", number);
  fs::create_directory(target);
  for (const fs::path& path : found) fs::rename(path, target / path.filename());
  return target;
}

}  // namespace

void Trainer::describe_state() {
  settings_ = str_cat("model=", options_.model, " optimizer=", options_.optimizer,
                      " lr=", options_.lr.value_or(default_lr(options_)),
                      " batch-size=", options_.batch_size, " limit=", options_.limit,
                      " seed=", options_.seed, " sync-batch-norm=", options_.sync_batch_norm);
  state_.add("model", *net_);
  state_.add("optimizer", *optimizer_);
  state_.add("schedule", *schedule_);
  state_.add("loader", *loader_);
  state_.add("step", step_);
  state_.add("loss", last_loss_);
  state_.add("epoch_loss", epoch_.loss);
  state_.add("epoch_correct", epoch_.correct);
  state_.add("epoch_images", epoch_.images);
  state_.add("settings", settings_);
}

void Trainer::prepare_output() {
  if (!is_main()) return;
  try {
    fs::create_directories(options_.out);
    if (options_.resume) return;
    const fs::path moved = move_earlier_run(options_.out);
    if (!moved.empty()) std::printf("the run that was here is now in %s\n", moved.c_str());
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::kIo, "train_fashion_mnist",
                str_cat("--out '", options_.out, "' cannot be used: ", error.code().message()));
  }
}

void Trainer::resume() {
  const std::string wanted = settings_;
  nn::LoadOptions options;
  options.group = group_.get();
  const std::optional<nn::LoadReport> loaded = nn::load_latest(options_.out, state_, options);
  if (!loaded) {
    if (is_main()) std::printf("resuming  there is no checkpoint yet, so from the start\n");
    return;
  }
  if (settings_ != wanted) {
    throw UsageError(str_cat("--resume: the run in '", options_.out, "' has ", settings_,
                             ", but the options say ", wanted,
                             "; use the same ones, or another --out"));
  }
  if (!is_main()) return;
  std::printf("resuming  %s: step %lld of %lld, loss %.4f\n", loaded->path.c_str(),
              static_cast<long long>(step_),
              static_cast<long long>(options_.epochs * steps_per_epoch()), last_loss_);
  std::fflush(stdout);
}

void Trainer::save() {
  nn::CheckpointOptions options;
  options.group = group_.get();
  nn::save_checkpoint(options_.out, step_, state_, options);
}
