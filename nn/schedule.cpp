#include "lockstep/nn/schedule.h"

#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep::nn {

Schedule::Schedule(Optimizer& optimizer) : optimizer_(&optimizer) {
  for (size_t i = 0; i < optimizer.group_count(); ++i) base_lrs_.push_back(optimizer.lr(i));
}

void Schedule::set_steps(int64_t steps) {
  check(optimizer_->group_count() == base_lrs_.size(), "schedule", [&] {
    return absl::StrCat("want the ", base_lrs_.size(), " groups that the optimiser had, got ",
                        optimizer_->group_count(), "; add groups first, then make the schedule");
  });
  steps_ = steps;
  for (size_t i = 0; i < base_lrs_.size(); ++i) {
    optimizer_->set_lr(lr_at(base_lrs_[i], steps_), i);
  }
}

NamedNumbers Schedule::named_state() const {
  NamedNumbers out = {{"steps", static_cast<double>(steps_)}};
  for (size_t i = 0; i < base_lrs_.size(); ++i) {
    out.emplace_back(absl::StrCat("base_lr.", i), base_lrs_[i]);
  }
  return out;
}

void Schedule::load_named_state(const NamedNumbers& state) {
  const NamedNumbers wanted = named_state();
  std::vector<double> values;
  for (const auto& [name, old_value] : wanted) {
    for (const auto& [key, value] : state) {
      if (key == name && std::isfinite(value) && value >= 0) values.push_back(value);
    }
  }
  // steps is a whole number that a double holds exactly.
  if (values.size() != wanted.size() || state.size() != wanted.size() ||
      values[0] != std::floor(values[0]) || values[0] > 0x1p53) {
    const auto list = [](const NamedNumbers& numbers) {
      return absl::StrJoin(numbers, ", ", [](std::string* out, const auto& entry) {
        absl::StrAppend(out, entry.first, " = ", entry.second);
      });
    };
    throw Error(
        ErrorCode::kMismatch, "load_named_state",
        absl::StrCat("want the names of ", list(wanted),
                     " with values of 0 and more and a whole number of steps, got ", list(state)));
  }
  base_lrs_.assign(values.begin() + 1, values.end());
  set_steps(static_cast<int64_t>(values[0]));
}

StepLR::StepLR(Optimizer& optimizer, const StepLROptions& options)
    : Schedule(optimizer), options_(options) {
  check(options.step_size > 0 && options.gamma >= 0, "StepLR", [&] {
    return absl::StrCat("want a step_size of 1 and more and a gamma of 0 and more, got ",
                        options.step_size, " and ", options.gamma);
  });
  set_steps(0);
}

double StepLR::lr_at(double base_lr, int64_t steps) const {
  const int64_t drops = steps / options_.step_size;
  return base_lr * std::pow(options_.gamma, static_cast<double>(drops));
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options)
    : Schedule(optimizer), options_(options) {
  check(options.warmup_steps >= 0 && options.t_max > options.warmup_steps && options.eta_min >= 0,
        "CosineAnnealingLR", [&] {
          return absl::StrCat(
              "want warmup_steps of 0 and more, t_max above them and eta_min of 0 "
              "and more, got ",
              options.warmup_steps, ", ", options.t_max, " and ", options.eta_min);
        });
  set_steps(0);
}

double CosineAnnealingLR::lr_at(double base_lr, int64_t steps) const {
  const int64_t warmup = options_.warmup_steps;
  if (steps < warmup) {
    return base_lr * static_cast<double>(steps + 1) / static_cast<double>(warmup + 1);
  }
  if (steps >= options_.t_max) return options_.eta_min;
  const double progress =
      static_cast<double>(steps - warmup) / static_cast<double>(options_.t_max - warmup);
  return options_.eta_min +
         (base_lr - options_.eta_min) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

}  // namespace lockstep::nn
