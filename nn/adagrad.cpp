#include "absl/strings/str_cat.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {
namespace {

enum State : size_t { kSum, kStep };

}  // namespace

Adagrad::Adagrad(NamedTensors parameters, const AdagradOptions& options) {
  add_group(std::move(parameters), options);
}

void Adagrad::add_group(NamedTensors parameters, const AdagradOptions& options) {
  append_group(std::move(parameters),
               {{"lr", options.lr},
                {"lr_decay", options.lr_decay},
                {"weight_decay", options.weight_decay},
                {"initial_accumulator_value", options.initial_accumulator_value},
                {"eps", options.eps}});
}

std::vector<Optimizer::StateKind> Adagrad::state_kinds() const {
  return {{.name = "sum"}, {.name = "step", .is_count = true}};
}

void Adagrad::check_options(const Group& group) const {
  for (const auto& [name, value] : group.options) {
    check(value >= 0, "Adagrad", [&, name = name, value = value] {
      return absl::StrCat("want a ", name, " of 0 and more, got ", value);
    });
  }
}

void Adagrad::update(const Group& group, const std::vector<Entry*>& entries) {
  const std::vector<StateKind> kinds = state_kinds();
  std::vector<Tensor> gradients;
  std::vector<kernels::AdagradEntry> list;
  for (Entry* entry : entries) {
    if (!entry->state[kSum].defined()) {
      entry->state[kStep] = make_state(kinds[kStep], entry->parameter);
      entry->state[kSum] = make_state(kinds[kSum], entry->parameter);
      entry->state[kSum].fill_(group.option("initial_accumulator_value"));
    }
    gradients.push_back(gradient(*entry));
    list.push_back({.parameter = entry->parameter.view(),
                    .gradient = gradients.back().view(),
                    .sum = entry->state[kSum].view()});
  }
  renewed([&group, entries, list = std::move(list)]() mutable {
    for (size_t i = 0; i < entries.size(); ++i) {
      list[i].step = entries[i]->state[kStep].item_i64() + 1;
    }
    launch<kernels::AdagradStep>(
        entries[0]->parameter.device(), list,
        kernels::AdagradOptions{.lr = group.option("lr"),
                                .lr_decay = group.option("lr_decay"),
                                .weight_decay = group.option("weight_decay"),
                                .eps = group.option("eps")});
    for (size_t i = 0; i < entries.size(); ++i) {
      entries[i]->state[kStep].fill_(static_cast<double>(list[i].step));
    }
  });
  for (Entry* entry : entries) {
    entry->state[kSum].mark_changed("Adagrad");
    entry->parameter.mark_changed("Adagrad");
  }
}

}  // namespace lockstep::nn
