#include "lockstep/nn/schedule.h"

#include <algorithm>
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
  for (auto& entry : more_state()) out.push_back(std::move(entry));
  return out;
}

void Schedule::load_named_state(const NamedNumbers& state) {
  const NamedNumbers wanted = named_state();
  const size_t own = 1 + base_lrs_.size();
  std::vector<double> values;
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (const auto& [key, value] : state) {
      const bool in_range = std::isfinite(value) && (value >= 0 || i >= own);
      if (key == wanted[i].first && in_range) values.push_back(value);
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
  const auto end = values.begin() + static_cast<int64_t>(own);
  set_more_state({end, values.end()});
  base_lrs_.assign(values.begin() + 1, end);
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

MultiStepLR::MultiStepLR(Optimizer& optimizer, MultiStepLROptions options)
    : Schedule(optimizer), options_(std::move(options)) {
  const std::vector<int64_t>& m = options_.milestones;
  check(std::is_sorted(m.begin(), m.end()) && options_.gamma >= 0, "MultiStepLR", [&] {
    return absl::StrCat("want ascending milestones and a gamma of 0 and more, got ",
                        absl::StrJoin(m, ", "), " and ", options_.gamma);
  });
  set_steps(0);
}

double MultiStepLR::lr_at(double base_lr, int64_t steps) const {
  const std::vector<int64_t>& m = options_.milestones;
  const auto passed = std::upper_bound(m.begin(), m.end(), steps) - m.begin();
  return base_lr * std::pow(options_.gamma, static_cast<double>(passed));
}

ExponentialLR::ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options)
    : Schedule(optimizer), options_(options) {
  check(options.gamma >= 0, "ExponentialLR",
        [&] { return absl::StrCat("want a gamma of 0 and more, got ", options.gamma); });
  set_steps(0);
}

double ExponentialLR::lr_at(double base_lr, int64_t steps) const {
  return base_lr * std::pow(options_.gamma, static_cast<double>(steps));
}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options)
    : Schedule(optimizer), options_(options) {
  check(options.start_factor >= 0 && options.end_factor >= 0 && options.total_iters > 0, "LinearLR",
        [&] {
          return absl::StrCat("want factors of 0 and more and total_iters above 0, got ",
                              options.start_factor, ", ", options.end_factor, " and ",
                              options.total_iters);
        });
  set_steps(0);
}

double LinearLR::lr_at(double base_lr, int64_t steps) const {
  const double done = static_cast<double>(std::min(steps, options_.total_iters)) /
                      static_cast<double>(options_.total_iters);
  return base_lr * (options_.start_factor + (options_.end_factor - options_.start_factor) * done);
}

OneCycleLR::OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options)
    : Schedule(optimizer), options_(options) {
  check(options.total_steps > 1 && options.pct_start >= 0 && options.pct_start <= 1 &&
            options.div_factor > 0 && options.final_div_factor > 0,
        "OneCycleLR", [&] {
          return absl::StrCat(
              "want total_steps above 1, a pct_start from 0 to 1 and divisors above 0, got ",
              options.total_steps, ", ", options.pct_start, ", ", options.div_factor, " and ",
              options.final_div_factor);
        });
  set_steps(0);
}

double OneCycleLR::lr_at(double base_lr, int64_t steps) const {
  const auto last = static_cast<double>(options_.total_steps - 1);
  const double top = options_.pct_start * static_cast<double>(options_.total_steps) - 1;
  const double at = std::min(static_cast<double>(steps), last);
  const double first_lr = base_lr / options_.div_factor;
  const double last_lr = first_lr / options_.final_div_factor;
  const auto between = [&](double from, double to, double part) {
    if (!options_.cosine) return from + (to - from) * part;
    return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * part));
  };
  if (at <= top) return between(first_lr, base_lr, top == 0 ? 1 : at / top);
  return between(base_lr, last_lr, (at - top) / (last - top));
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

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options)
    : Schedule(optimizer), options_(options) {
  check(options.factor >= 0 && options.factor < 1 && options.patience >= 0 &&
            options.threshold >= 0 && options.cooldown >= 0 && options.min_lr >= 0,
        "ReduceLROnPlateau", [&] {
          return absl::StrCat(
              "want a factor from 0 to below 1 and patience, threshold, cooldown and min_lr of 0 "
              "and more, got ",
              options.factor, ", ", options.patience, ", ", options.threshold, ", ",
              options.cooldown, " and ", options.min_lr);
        });
  set_steps(0);
}

bool ReduceLROnPlateau::improves(double metric) const {
  if (!std::isfinite(metric)) return false;
  if (!has_best_) return true;
  const double margin = options_.relative ? options_.threshold * best_ : options_.threshold;
  return options_.maximize ? metric > best_ + margin : metric < best_ - margin;
}

void ReduceLROnPlateau::step(double metric) {
  if (improves(metric)) {
    best_ = metric;
    has_best_ = true;
    bad_steps_ = 0;
  } else {
    ++bad_steps_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_steps_ = 0;
  }
  if (bad_steps_ > options_.patience) {
    ++reductions_;
    cooldown_left_ = options_.cooldown;
    bad_steps_ = 0;
  }
  set_steps(steps() + 1);
}

double ReduceLROnPlateau::lr_at(double base_lr, int64_t) const {
  if (reductions_ == 0) return base_lr;
  const double lr = base_lr * std::pow(options_.factor, static_cast<double>(reductions_));
  return std::max(lr, std::min(base_lr, options_.min_lr));
}

NamedNumbers ReduceLROnPlateau::more_state() const {
  return {{"best", best_},
          {"has_best", has_best_ ? 1 : 0},
          {"bad_steps", static_cast<double>(bad_steps_)},
          {"cooldown_left", static_cast<double>(cooldown_left_)},
          {"reductions", static_cast<double>(reductions_)}};
}

void ReduceLROnPlateau::set_more_state(const std::vector<double>& values) {
  const auto count = [](double value) {
    return static_cast<int64_t>(std::clamp(value, 0.0, 0x1p53));
  };
  best_ = values[0];
  has_best_ = values[1] != 0;
  bad_steps_ = count(values[2]);
  cooldown_left_ = count(values[3]);
  reductions_ = count(values[4]);
}

}  // namespace lockstep::nn
