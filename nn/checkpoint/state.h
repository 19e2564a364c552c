#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/checkpoint/format.h"

namespace lockstep::nn {

// The contents of a checkpoint, or one part of them.
struct Contents {
  NamedTensors tensors;
  std::vector<NamedValue> values;

  bool empty() const { return tensors.empty() && values.empty(); }
};

// What a load is going to do. Matching fills it; nothing has changed until apply().
struct LoadPlan {
  LoadReport report;
  bool part_without_match = false;  // a module's part is there and not one name of it matches
  // Those that may yet throw come first, and change no tensor.
  std::vector<std::function<void()>> set_numbers;
  std::vector<std::function<void()>> copy_tensors;

  // Throws Error(kMismatch) with the lists in full, unless the plan is a load that `strict` allows.
  void check(bool strict) const;
  // What is missing counts only where its name begins with one of `prefixes`; all, if there are
  // none. Throws Error(kMismatch) where nothing is loaded for them.
  void keep_only(const std::vector<std::string>& prefixes);
  void apply() const;
};

// Something of a TrainingState that has a name.
class StatePart {
 public:
  explicit StatePart(std::string name) : name_(std::move(name)) {}
  virtual ~StatePart() = default;

  const std::string& name() const { return name_; }
  // Adds what it holds, by full names. Tensors are its own.
  virtual void collect(Contents& out) const = 0;
  // Matches what the checkpoint holds by the name of this part: the names in `stored` are without
  // it, and empty for a part that is one tensor or value.
  virtual void plan(const Contents& stored, LoadPlan& plan) = 0;

 protected:
  // "part/inner".
  std::string full(const std::string& inner) const { return name_ + "/" + inner; }

 private:
  std::string name_;
};

std::unique_ptr<StatePart> make_part(std::string name, Module& module);
std::unique_ptr<StatePart> make_part(std::string name, Optimizer& optimizer);
std::unique_ptr<StatePart> make_part(std::string name, std::function<NamedNumbers()> get,
                                     std::function<void(const NamedNumbers&)> set);
std::unique_ptr<StatePart> make_part(std::string name, ExponentialMovingAverage& average);
std::unique_ptr<StatePart> make_part(std::string name, DataLoader& loader);
std::unique_ptr<StatePart> make_part(std::string name, Sampler& sampler);
std::unique_ptr<StatePart> make_part(std::string name, NamedTensors tensors);
std::unique_ptr<StatePart> make_part(std::string name, Tensor& tensor);
std::unique_ptr<StatePart> make_part(std::string name, int64_t& value);
std::unique_ptr<StatePart> make_part(std::string name, uint64_t& value);
std::unique_ptr<StatePart> make_part(std::string name, double& value);
std::unique_ptr<StatePart> make_part(std::string name, std::string& value);

// Matches tensors with a module's by name; `prefix` goes before names in the report.
void plan_module(Module& module, const std::string& prefix, const NamedTensors& stored,
                 LoadPlan& plan);

// What `options` lets a load see of a checkpoint: renamed, and without what it leaves alone. Throws
// Error(kMismatch) where two get the same name.
Contents select_contents(const Contents& contents, const LoadOptions& options);

// A generator's state on each rank, rank after rank: seed, offset.
using GeneratorWords = std::vector<uint64_t>;

// What save_checkpoint and the loads see of a TrainingState.
struct StateAccess {
  static Contents collect(const TrainingState& state);
  // Seed and offset of every generator of this rank.
  static GeneratorWords generators(const TrainingState& state);
  // `words` holds each rank's generators(), rank after rank.
  static void add_generators(const TrainingState& state, const GeneratorWords& words,
                             std::vector<NamedValue>& values);
  static LoadPlan plan(TrainingState& state, const Contents& contents, int rank);

  static const std::string& run(const TrainingState& state) { return state.run_; }
  static void set_run(TrainingState& state, std::string run) { state.run_ = std::move(run); }
};

}  // namespace lockstep::nn
