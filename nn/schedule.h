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
  // What a schedule that looks at more than the number of steps keeps besides, in a fixed order;
  // set_more_state() gets finite values in that order, before the rates are set.
  virtual NamedNumbers more_state() const { return {}; }
  virtual void set_more_state(const std::vector<double>&) {}

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

struct MultiStepLROptions {
  std::vector<int64_t> milestones;  // ascending; one that comes twice counts twice
  double gamma = 0.1;
};

// base_lr * gamma^(how many milestones are at or before steps).
class MultiStepLR : public Schedule {
 public:
  MultiStepLR(Optimizer& optimizer, MultiStepLROptions options);
  double lr_at(double base_lr, int64_t steps) const override;

 private:
  MultiStepLROptions options_;
};

struct ExponentialLROptions {
  double gamma = 0.9;
};

// base_lr * gamma^steps.
class ExponentialLR : public Schedule {
 public:
  ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options);
  double lr_at(double base_lr, int64_t steps) const override;

 private:
  ExponentialLROptions options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  int64_t total_iters = 5;
};

// base_lr times a factor that goes in a line from start_factor to end_factor over total_iters
// steps, and stays: a linear warm-up.
class LinearLR : public Schedule {
 public:
  LinearLR(Optimizer& optimizer, const LinearLROptions& options);
  double lr_at(double base_lr, int64_t steps) const override;

 private:
  LinearLROptions options_;
};

struct OneCycleLROptions {
  int64_t total_steps = 2;
  double pct_start = 0.3;         // the part of the steps that goes up
  bool cosine = true;             // else up and down in lines
  double div_factor = 25;         // the first rate is base_lr / div_factor
  double final_div_factor = 1e4;  // the last is the first / final_div_factor
};

// Up to base_lr and down again (Smith and Topin, 2018): base_lr, the rate that the optimiser's
// group has when the schedule is made, is what PyTorch calls max_lr. Momentum is left alone. After
// total_steps - 1 steps the rate stays.
class OneCycleLR : public Schedule {
 public:
  OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options);
  double lr_at(double base_lr, int64_t steps) const override;

 private:
  OneCycleLROptions options_;
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

struct ReduceLROnPlateauOptions {
  bool maximize = false;  // whether a larger metric is a better one
  double factor = 0.1;
  int64_t patience = 10;    // steps without an improvement that are forgiven
  double threshold = 1e-4;  // an improvement is more than this,
  bool relative = true;     // as a part of the best metric, else as a difference
  int64_t cooldown = 0;     // steps after a reduction that count nothing
  double min_lr = 0;
};

// base_lr * factor^n, but no less than min_lr, where n grows by one whenever the metric has not
// improved for more than `patience` steps. A metric that is not finite is no improvement.
class ReduceLROnPlateau : public Schedule {
 public:
  ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options = {});

  // One step, with the metric of what was trained since the last.
  void step(double metric);
  double lr_at(double base_lr, int64_t steps) const override;

 protected:
  NamedNumbers more_state() const override;
  void set_more_state(const std::vector<double>& values) override;

 private:
  bool improves(double metric) const;

  ReduceLROnPlateauOptions options_;
  double best_ = 0;
  bool has_best_ = false;
  int64_t bad_steps_ = 0;
  int64_t cooldown_left_ = 0;
  int64_t reductions_ = 0;
};

}  // namespace lockstep::nn
