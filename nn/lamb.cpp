#include "absl/strings/str_cat.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {
namespace {

enum State : size_t { kExpAvg, kExpAvgSq, kStep };

}  // namespace

LAMB::LAMB(NamedTensors parameters, const LAMBOptions& options) {
  add_group(std::move(parameters), options);
}

void LAMB::add_group(NamedTensors parameters, const LAMBOptions& options) {
  append_group(std::move(parameters), {{"lr", options.lr},
                                       {"beta1", options.betas.first},
                                       {"beta2", options.betas.second},
                                       {"eps", options.eps},
                                       {"weight_decay", options.weight_decay}});
}

std::vector<Optimizer::StateKind> LAMB::state_kinds() const {
  return {{.name = "exp_avg"}, {.name = "exp_avg_sq"}, {.name = "step", .is_count = true}};
}

void LAMB::check_options(const Group& group) const {
  const double beta1 = group.option("beta1");
  const double beta2 = group.option("beta2");
  check(group.option("lr") >= 0 && group.option("eps") >= 0 && group.option("weight_decay") >= 0 &&
            beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1,
        "LAMB", [&] {
          return absl::StrCat(
              "want lr, eps and weight_decay of 0 and more and betas from 0 to below 1, got ",
              group.option("lr"), ", ", group.option("eps"), ", ", group.option("weight_decay"),
              ", ", beta1, " and ", beta2);
        });
}

void LAMB::update(const Group& group, const std::vector<Entry*>& entries) {
  const kernels::LambOptions options = {.lr = group.option("lr"),
                                        .beta1 = group.option("beta1"),
                                        .beta2 = group.option("beta2"),
                                        .eps = group.option("eps"),
                                        .weight_decay = group.option("weight_decay")};
  const std::vector<StateKind> kinds = state_kinds();
  std::vector<Tensor> gradients;
  std::vector<kernels::AdamEntry> list;
  for (Entry* entry : entries) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (!entry->state[i].defined()) entry->state[i] = make_state(kinds[i], entry->parameter);
    }
    gradients.push_back(gradient(*entry));
    list.push_back({.parameter = entry->parameter.view(),
                    .gradient = gradients.back().view(),
                    .exp_avg = entry->state[kExpAvg].view(),
                    .exp_avg_sq = entry->state[kExpAvgSq].view(),
                    .step = entry->state[kStep].item_i64() + 1});
  }
  launch<kernels::LambStep>(entries[0]->parameter.device(), list, options);
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i]->state[kStep].fill_(static_cast<double>(list[i].step));
    entries[i]->state[kExpAvg].mark_changed("LAMB");
    entries[i]->state[kExpAvgSq].mark_changed("LAMB");
    entries[i]->parameter.mark_changed("LAMB");
  }
}

}  // namespace lockstep::nn
