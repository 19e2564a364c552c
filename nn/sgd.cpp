#include "absl/strings/str_cat.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {

SGD::SGD(NamedTensors parameters, const SGDOptions& options) {
  add_group(std::move(parameters), options);
}

void SGD::add_group(NamedTensors parameters, const SGDOptions& options) {
  append_group(std::move(parameters), {{"lr", options.lr},
                                       {"momentum", options.momentum},
                                       {"dampening", options.dampening},
                                       {"weight_decay", options.weight_decay},
                                       {"nesterov", options.nesterov ? 1 : 0}});
}

std::vector<Optimizer::StateKind> SGD::state_kinds() const { return {{"momentum_buffer", false}}; }

void SGD::check_options(const Group& group) const {
  const double momentum = group.option("momentum");
  const double dampening = group.option("dampening");
  const double nesterov = group.option("nesterov");
  check(group.option("lr") >= 0 && momentum >= 0 && group.option("weight_decay") >= 0, "SGD", [&] {
    return absl::StrCat("want lr, momentum and weight_decay of 0 and more, got ",
                        group.option("lr"), ", ", momentum, " and ", group.option("weight_decay"));
  });
  check(nesterov == 0 || (nesterov == 1 && momentum > 0 && dampening == 0), "SGD", [&] {
    return absl::StrCat("nesterov needs a momentum above 0 and no dampening, got ", momentum,
                        " and ", dampening);
  });
}

void SGD::update(const Group& group, const std::vector<Entry*>& entries) {
  const bool has_momentum = group.option("momentum") != 0;
  std::vector<Tensor> gradients;
  std::vector<Tensor> buffers;
  std::vector<kernels::SgdEntry> list;
  for (const Entry* entry : entries) {
    gradients.push_back(gradient(*entry));
    kernels::SgdEntry& item = list.emplace_back();
    item.parameter = entry->parameter.view();
    item.gradient = gradients.back().view();
    if (!has_momentum) continue;
    item.has_momentum = entry->state[0].defined();
    if (!item.has_momentum)
      refuse_capture("SGD", "its momentum would begin anew; step once before");
    buffers.push_back(item.has_momentum ? entry->state[0] : empty_like(entry->parameter));
    item.momentum = buffers.back().view();
  }
  renewed([&group, device = entries[0]->parameter.device(), list = std::move(list)] {
    launch<kernels::SgdStep>(device, list,
                             kernels::SgdOptions{.lr = group.option("lr"),
                                                 .momentum = group.option("momentum"),
                                                 .dampening = group.option("dampening"),
                                                 .weight_decay = group.option("weight_decay"),
                                                 .nesterov = group.option("nesterov") != 0});
  });
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i]->parameter.mark_changed("SGD");
    if (has_momentum) {
      entries[i]->state[0] = buffers[i];
      buffers[i].mark_changed("SGD");
    }
  }
}

}  // namespace lockstep::nn
