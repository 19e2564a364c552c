#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/optim.h"

namespace lockstep::nn {

// Sets the learning rates of an optimiser by the number of steps taken, in closed form: nothing
// depends on how a step was reached. The rates that the optimiser's groups had when the schedule
// was made are its base rates. The optimiser must outlive the schedule and keep its groups.
//
// Call step() once for whatever unit the options count in, epochs or batches, after the
// optimiser's own step().
class Schedule {
 public:
  virtual ~Schedule() = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  void step() { set_steps(steps_ + 1); }
  int64_t steps() const { return steps_; }
  // The rate of a group with this base rate after so many steps.
  virtual double lr_at(double base_lr, int64_t steps) const = 0;

  // "steps", "base_lr.0", … for checkpoints. Loading sets the optimiser's rates too. Throws
  // Error(kMismatch) that lists what is missing or unexpected; then nothing was changed.
  NamedNumbers named_state() const;
  void load_named_state(const NamedNumbers& state);

 protected:
  explicit Schedule(Optimizer& optimizer);

  void set_steps(int64_t steps);

 private:
  Optimizer* optimizer_;
  std::vector<double> base_lrs_;
  int64_t steps_ = 0;
};

struct StepLROptions {
  int64_t step_size = 1;
  double gamma = 0.1;
};

// base_lr * gamma^floor(steps / step_size).
class StepLR : public Schedule {
 public:
  StepLR(Optimizer& optimizer, const StepLROptions& options);
  double lr_at(double base_lr, int64_t steps) const override;

 private:
  StepLROptions options_;
};

struct CosineAnnealingLROptions {
  int64_t t_max = 1;  // the step at which eta_min is reached, warm-up included
  double eta_min = 0;
  int64_t warmup_steps = 0;
};

// eta_min + (base_lr - eta_min) (1 + cos(pi t / T)) / 2 (Loshchilov and Hutter, 2017, one cycle)
// with t = steps - warmup_steps and T = t_max - warmup_steps; eta_min after t_max. Before that,
// through the warm-up, base_lr (steps + 1) / (warmup_steps + 1), which reaches base_lr where the
// cosine begins.
class CosineAnnealingLR : public Schedule {
 public:
  CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);
  double lr_at(double base_lr, int64_t steps) const override;

 private:
  CosineAnnealingLROptions options_;
};

}  // namespace lockstep::nn
