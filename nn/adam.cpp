#include "absl/strings/str_cat.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {
namespace {

enum State : size_t { kExpAvg, kExpAvgSq, kStep };

template <class Options>
NamedNumbers numbers(const Options& options) {
  return {{"lr", options.lr},
          {"beta1", options.betas.first},
          {"beta2", options.betas.second},
          {"eps", options.eps},
          {"weight_decay", options.weight_decay}};
}

}  // namespace

Adam::Adam(NamedTensors parameters, const AdamOptions& options) {
  add_group(std::move(parameters), options);
}

void Adam::add_group(NamedTensors parameters, const AdamOptions& options) {
  append_group(std::move(parameters), numbers(options));
}

AdamW::AdamW(NamedTensors parameters, const AdamWOptions& options) : Adam(Kind::kAdamW) {
  add_group(std::move(parameters), options);
}

void AdamW::add_group(NamedTensors parameters, const AdamWOptions& options) {
  append_group(std::move(parameters), numbers(options));
}

LAMB::LAMB(NamedTensors parameters, const LAMBOptions& options) : Adam(Kind::kLAMB) {
  add_group(std::move(parameters), options);
}

void LAMB::add_group(NamedTensors parameters, const LAMBOptions& options) {
  append_group(std::move(parameters), numbers(options));
}

std::string_view Adam::kind_name() const {
  return kind_ == Kind::kAdam ? "Adam" : kind_ == Kind::kAdamW ? "AdamW" : "LAMB";
}

std::vector<Optimizer::StateKind> Adam::state_kinds() const {
  return {{"exp_avg", false}, {"exp_avg_sq", false}, {"step", true}};
}

void Adam::check_options(const Group& group) const {
  const double beta1 = group.option("beta1");
  const double beta2 = group.option("beta2");
  check(group.option("lr") >= 0 && group.option("eps") >= 0 && group.option("weight_decay") >= 0 &&
            beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1,
        kind_name(), [&] {
          return absl::StrCat(
              "want lr, eps and weight_decay of 0 and more and betas from 0 to "
              "below 1, got ",
              group.option("lr"), ", ", group.option("eps"), ", ", group.option("weight_decay"),
              ", ", beta1, " and ", beta2);
        });
}

void Adam::update(const Group& group, const std::vector<Entry*>& entries) {
  const std::vector<StateKind> kinds = state_kinds();
  std::vector<Tensor> gradients;
  std::vector<kernels::AdamEntry> list;
  for (Entry* entry : entries) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      // Zeros are what a state holds before the first step, so a failed step leaves nothing behind.
      if (!entry->state[i].defined()) entry->state[i] = make_state(kinds[i], entry->parameter);
    }
    gradients.push_back(gradient(*entry));
    list.push_back({.parameter = entry->parameter.view(),
                    .gradient = gradients.back().view(),
                    .exp_avg = entry->state[kExpAvg].view(),
                    .exp_avg_sq = entry->state[kExpAvgSq].view()});
  }
  renewed([this, &group, entries, list = std::move(list)]() mutable {
    for (size_t i = 0; i < entries.size(); ++i) {
      list[i].step = entries[i]->state[kStep].item_i64() + 1;
    }
    const Device device = entries[0]->parameter.device();
    const double lr = group.option("lr"), weight_decay = group.option("weight_decay");
    const double beta1 = group.option("beta1"), beta2 = group.option("beta2");
    const double eps = group.option("eps");
    if (kind_ == Kind::kLAMB) {
      launch<kernels::LambStep>(device, list,
                                kernels::LambOptions{lr, beta1, beta2, eps, weight_decay});
    } else {
      launch<kernels::AdamStep>(
          device, list,
          kernels::AdamOptions{lr, beta1, beta2, eps, weight_decay, kind_ == Kind::kAdamW});
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      entries[i]->state[kStep].fill_(static_cast<double>(list[i].step));
    }
  });
  const char* op = kind_name().data();
  for (Entry* entry : entries) {
    entry->state[kExpAvg].mark_changed(op);
    entry->state[kExpAvgSq].mark_changed(op);
    entry->parameter.mark_changed(op);
  }
}

}  // namespace lockstep::nn
