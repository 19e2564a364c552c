#include "lockstep/nn/grad_scaler.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/nn/grad_norm.h"

namespace lockstep::nn {

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(options.init_scale) {
  check(options.init_scale > 0 && std::isfinite(options.init_scale) && options.growth_factor > 1 &&
            options.backoff_factor > 0 && options.backoff_factor < 1 &&
            options.growth_interval >= 1,
        "GradScaler", [&] {
          return absl::StrCat(
              "want an init_scale above 0, a growth_factor above 1, a backoff_factor between 0 and "
              "1 and a growth_interval of 1 and more, got ",
              options.init_scale, ", ", options.growth_factor, ", ", options.backoff_factor,
              " and ", options.growth_interval);
        });
}

GradScaler::Seen* GradScaler::find(const Optimizer& optimizer) {
  for (Seen& seen : seen_) {
    if (seen.optimizer == &optimizer) return &seen;
  }
  return nullptr;
}

Tensor GradScaler::scale(const Tensor& loss) const { return loss * scale_; }

void GradScaler::unscale(Optimizer& optimizer) {
  check(find(optimizer) == nullptr, "GradScaler",
        "the optimiser's gradients were divided by the scale already since the last update()");
  std::vector<Tensor> gradients;
  for (auto& [name, parameter] : optimizer.named_parameters()) {
    if (!parameter.has_grad()) continue;
    gradients.push_back(parameter.grad());
  }
  Seen seen{&optimizer, std::isfinite(scale_all_norm_squared("GradScaler", gradients, 1 / scale_))};
  seen.finite = optimizer.agree(seen.finite);
  if (options_.group != nullptr) {
    int64_t all = seen.finite ? 1 : 0;
    options_.group->all_reduce(&all, &all, 1, DType::kI64, comm::ReduceOp::kMin).wait();
    seen.finite = all != 0;
  }
  seen_.push_back(seen);
}

bool GradScaler::step(Optimizer& optimizer) {
  if (find(optimizer) == nullptr) unscale(optimizer);
  Seen& seen = *find(optimizer);
  check(!seen.stepped, "GradScaler", "the optimiser was stepped already since the last update()");
  seen.stepped = true;
  if (seen.finite) optimizer.step();
  return seen.finite;
}

void GradScaler::update() {
  check(!seen_.empty(), "GradScaler", "update() comes after step() or unscale()");
  bool finite = true;
  for (const Seen& seen : seen_) finite = finite && seen.finite;
  seen_.clear();
  if (!finite) {
    scale_ *= options_.backoff_factor;
    good_steps_ = 0;
  } else if (++good_steps_ == options_.growth_interval) {
    const double grown = scale_ * options_.growth_factor;
    if (std::isfinite(static_cast<float>(grown))) scale_ = grown;
    good_steps_ = 0;
  }
}

NamedNumbers GradScaler::named_state() const {
  return {{"scale", scale_}, {"growth_tracker", static_cast<double>(good_steps_)}};
}

void GradScaler::load_named_state(const NamedNumbers& state) {
  double scale = 0;
  double good_steps = -1;
  for (const auto& [name, value] : state) {
    if (name == "scale") scale = value;
    if (name == "growth_tracker") good_steps = value;
  }
  if (!(state.size() == 2 && scale > 0 && std::isfinite(scale) && good_steps >= 0 &&
        good_steps < static_cast<double>(options_.growth_interval))) {
    throw Error(ErrorCode::kMismatch, "load_named_state",
                absl::StrCat("want a scale above 0 and a growth_tracker below ",
                             options_.growth_interval, " and nothing else, got ", state.size(),
                             " numbers, scale = ", scale, ", growth_tracker = ", good_steps));
  }
  scale_ = scale;
  good_steps_ = static_cast<int64_t>(good_steps);
}

}  // namespace lockstep::nn
