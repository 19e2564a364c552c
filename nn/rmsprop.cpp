#include "absl/strings/str_cat.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {
namespace {

enum State : size_t { kSquareAvg, kMomentumBuffer, kGradAvg };

}  // namespace

RMSprop::RMSprop(NamedTensors parameters, const RMSpropOptions& options) {
  add_group(std::move(parameters), options);
}

void RMSprop::add_group(NamedTensors parameters, const RMSpropOptions& options) {
  append_group(std::move(parameters), {{"lr", options.lr},
                                       {"alpha", options.alpha},
                                       {"eps", options.eps},
                                       {"weight_decay", options.weight_decay},
                                       {"momentum", options.momentum},
                                       {"centered", options.centered ? 1 : 0}});
}

std::vector<Optimizer::StateKind> RMSprop::state_kinds() const {
  return {{.name = "square_avg"},
          {.name = "momentum_buffer", .is_optional = true},
          {.name = "grad_avg", .is_optional = true}};
}

void RMSprop::check_options(const Group& group) const {
  const double alpha = group.option("alpha");
  const double centered = group.option("centered");
  check(group.option("lr") >= 0 && group.option("eps") >= 0 && group.option("weight_decay") >= 0 &&
            group.option("momentum") >= 0 && alpha >= 0 && alpha <= 1 &&
            (centered == 0 || centered == 1),
        "RMSprop", [&] {
          return absl::StrCat(
              "want lr, eps, weight_decay and momentum of 0 and more, alpha from 0 to 1 and "
              "centered 0 or 1, got ",
              group.option("lr"), ", ", group.option("eps"), ", ", group.option("weight_decay"),
              ", ", group.option("momentum"), ", ", alpha, " and ", centered);
        });
}

void RMSprop::update(const Group& group, const std::vector<Entry*>& entries) {
  const bool has_momentum = group.option("momentum") != 0;
  const bool is_centered = group.option("centered") != 0;
  const std::vector<StateKind> kinds = state_kinds();
  std::vector<Tensor> gradients;
  std::vector<kernels::RMSpropEntry> list;
  for (Entry* entry : entries) {
    // Zeros are what a state holds before the first step, so a failed step leaves nothing behind.
    const auto state = [&](State i) {
      if (!entry->state[i].defined()) entry->state[i] = make_state(kinds[i], entry->parameter);
      return entry->state[i].view();
    };
    gradients.push_back(gradient(*entry));
    kernels::RMSpropEntry& item = list.emplace_back();
    item.parameter = entry->parameter.view();
    item.gradient = gradients.back().view();
    item.square_avg = state(kSquareAvg);
    if (has_momentum) item.momentum_buffer = state(kMomentumBuffer);
    if (is_centered) item.grad_avg = state(kGradAvg);
  }
  renewed([&group, device = entries[0]->parameter.device(), list = std::move(list)] {
    launch<kernels::RMSpropStep>(
        device, list,
        kernels::RMSpropOptions{.lr = group.option("lr"),
                                .alpha = group.option("alpha"),
                                .eps = group.option("eps"),
                                .weight_decay = group.option("weight_decay"),
                                .momentum = group.option("momentum"),
                                .centered = group.option("centered") != 0});
  });
  for (Entry* entry : entries) {
    entry->parameter.mark_changed("RMSprop");
    for (const Tensor& state : entry->state) {
      if (state.defined()) state.mark_changed("RMSprop");
    }
  }
}

}  // namespace lockstep::nn
