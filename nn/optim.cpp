#include "lockstep/nn/optim.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lockstep/core/autograd.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/stream_timeline.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

std::string describe(DType dtype, const Shape& shape) {
  return str_cat(name(dtype), " ", to_string(shape));
}

std::string group_prefix(size_t group) { return absl::StrCat("group", group, "."); }

// Where each name leads, in the order of a load; a name that comes twice is a problem.
template <class T>
std::map<std::string, T> by_name(const std::vector<std::pair<std::string, T>>& entries,
                                 std::vector<std::string>& problems) {
  std::map<std::string, T> out;
  for (const auto& [name, value] : entries) {
    if (!out.emplace(name, value).second) problems.push_back(absl::StrCat(name, " comes twice"));
  }
  return out;
}

void throw_if_any(const std::vector<std::string>& problems, std::string_view op) {
  if (problems.empty()) return;
  throw Error(
      ErrorCode::kMismatch, op,
      absl::StrCat("what is loaded does not fit this optimiser, so nothing was changed:\n  ",
                   absl::StrJoin(problems, "\n  ")));
}

}  // namespace

double Optimizer::Group::option(std::string_view name) const {
  for (const auto& [key, value] : options) {
    if (key == name) return value;
  }
  throw Error(ErrorCode::kInvalidArgument, "option",
              str_cat("no option '", name, "'; there are: ",
                      absl::StrJoin(options, ", ", [](std::string* out, const auto& entry) {
                        out->append(entry.first);
                      })));
}

Tensor Optimizer::gradient(const Entry& entry) {
  Tensor gradient = entry.parameter.grad();
  if (gradient.strides() == entry.parameter.strides()) return gradient;
  Tensor ordered = empty_like(entry.parameter);
  ordered.copy_(gradient);
  return ordered;
}

Tensor Optimizer::make_state(const StateKind& kind, const Tensor& parameter) {
  refuse_capture("Optimizer::step", "it would make its state anew; step once before");
  return kind.is_count ? Tensor::zeros({}, {DType::kI64}) : zeros_like(parameter);
}

void Optimizer::follow(Entry& entry) {
  const Device device = entry.parameter.device();
  for (Tensor& state : entry.state) {
    const bool is_apart = state.defined() && state.device() != device;
    if (is_apart && is_floating(state.dtype())) state = state.to(device);
  }
}

void Optimizer::append_group(NamedTensors parameters, NamedNumbers options) {
  check(!parameters.empty(), "add_group", "want parameters, got none");
  std::set<std::string> names;
  std::map<const TensorImpl*, std::string> tensors;
  for (const auto& [name, parameter] : named_parameters()) {
    names.insert(name);
    tensors.emplace(parameter.impl().get(), name);
  }
  Group group{std::move(options), {}};
  for (auto& entry : parameters) {
    const std::string& name = entry.first;
    Tensor& parameter = entry.second;
    check(!name.empty() && names.insert(name).second, "add_group",
          [&] { return absl::StrCat("the name '", name, "' is empty or comes twice"); });
    check(parameter.defined() && parameter.is_leaf() && is_floating(parameter.dtype()), "add_group",
          [&] { return absl::StrCat("want '", name, "' to be a leaf of a floating dtype"); });
    check(empty_like(parameter).strides() == parameter.strides(), "add_group", [&] {
      return absl::StrCat("want '", name, "' to fill one block of memory, got a view of shape ",
                          to_string(parameter.shape()), " with strides ",
                          to_string(parameter.strides()), "; use contiguous().detach()");
    });
    check(parameter.device() == parameters.front().second.device(), "add_group", [&] {
      return absl::StrCat("want one device for a group, got ",
                          parameters.front().second.device().name(), " and ",
                          parameter.device().name(), " for '", name, "'");
    });
    const auto known = tensors.emplace(parameter.impl().get(), name);
    check(known.second, "add_group", [&] {
      return absl::StrCat("'", name, "' is the same tensor as '", known.first->second,
                          "', which would be stepped twice");
    });
    group.entries.push_back({name, parameter, std::vector<Tensor>(state_kinds().size())});
  }
  check_options(group);
  groups_.push_back(std::move(group));
}

void Optimizer::step() {
  const timeline::Span span(timeline::kind::kOptimizer, "optimizer");
  NoGrad no_grad;
  for (Group& group : groups_) {
    std::vector<Entry*> entries;
    for (Entry& entry : group.entries) {
      if (!entry.parameter.has_grad()) continue;
      follow(entry);
      entries.push_back(&entry);
    }
    if (entries.empty()) continue;
    const timeline::StreamSpan on_device(timeline::kind::kOptimizer, "optimizer",
                                         entries[0]->parameter.device());
    update(group, entries);
  }
}

void Optimizer::zero_grad() {
  for (Group& group : groups_) {
    for (Entry& entry : group.entries) entry.parameter.clear_grad();
  }
}

const Optimizer::Group& Optimizer::group_at(size_t group) const {
  check(group < groups_.size(), "optimizer",
        [&] { return absl::StrCat("want a group below ", groups_.size(), ", got ", group); });
  return groups_[group];
}

NamedTensors Optimizer::named_parameters(size_t group) const {
  NamedTensors out;
  for (const Entry& entry : group_at(group).entries) out.emplace_back(entry.name, entry.parameter);
  return out;
}

NamedTensors Optimizer::named_parameters() const {
  NamedTensors out;
  for (size_t i = 0; i < groups_.size(); ++i) {
    for (auto& entry : named_parameters(i)) out.push_back(std::move(entry));
  }
  return out;
}

double Optimizer::option(std::string_view name, size_t group) const {
  return group_at(group).option(name);
}

void Optimizer::set_option(std::string_view name, double value, size_t group) {
  option(name, group);  // throws unless both exist
  Group changed{groups_[group].options, {}};
  for (auto& [key, old_value] : changed.options) {
    if (key == name) old_value = value;
  }
  check_options(changed);
  groups_[group].options = std::move(changed.options);
}

void Optimizer::set_lr(double lr) {
  for (size_t i = 0; i < groups_.size(); ++i) set_lr(lr, i);
}

NamedNumbers Optimizer::named_options() const {
  NamedNumbers out;
  for (size_t i = 0; i < groups_.size(); ++i) {
    for (const auto& [name, value] : groups_[i].options) {
      out.emplace_back(group_prefix(i) + name, value);
    }
  }
  return out;
}

void Optimizer::load_named_options(const NamedNumbers& options) {
  std::vector<std::string> problems;
  auto values = by_name(options, problems);
  std::vector<NamedNumbers> loaded;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group group{groups_[i].options, {}};
    for (auto& [name, value] : group.options) {
      const auto found = values.find(group_prefix(i) + name);
      if (found == values.end()) {
        problems.push_back(absl::StrCat(group_prefix(i), name, " is missing"));
        continue;
      }
      value = found->second;
      values.erase(found);
    }
    try {
      check_options(group);
    } catch (const Error& error) {
      problems.push_back(absl::StrCat(group_prefix(i), ": ", error.what()));
    }
    loaded.push_back(std::move(group.options));
  }
  for (const auto& [name, value] : values) {
    problems.push_back(absl::StrCat(name, " is unexpected"));
  }
  throw_if_any(problems, "load_named_options");
  for (size_t i = 0; i < groups_.size(); ++i) groups_[i].options = std::move(loaded[i]);
}

NamedTensors Optimizer::named_state() const {
  NamedTensors out;
  const std::vector<StateKind> kinds = state_kinds();
  for (const Group& group : groups_) {
    for (const Entry& entry : group.entries) {
      for (size_t i = 0; i < kinds.size(); ++i) {
        if (entry.state[i].defined()) {
          out.emplace_back(absl::StrCat(kinds[i].name, ".", entry.name), entry.state[i]);
        }
      }
    }
  }
  return out;
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const Group& group : groups_) {
    for (const Entry& entry : group.entries) {
      for (const Tensor& state : entry.state) bytes += state.defined() ? state.nbytes() : 0;
    }
  }
  return bytes;
}

void Optimizer::check_named_state(const NamedTensors& state) const {
  std::vector<std::string> problems;
  auto values = by_name(state, problems);
  const std::vector<StateKind> kinds = state_kinds();
  for (const Group& group : groups_) {
    for (const Entry& entry : group.entries) {
      std::vector<std::string> missing;
      bool stepped = false;
      for (size_t i = 0; i < kinds.size(); ++i) {
        const std::string name = absl::StrCat(kinds[i].name, ".", entry.name);
        const auto found = values.find(name);
        if (found == values.end()) {
          if (!kinds[i].is_optional) missing.push_back(name);
          continue;
        }
        stepped = true;
        const std::string wanted = kinds[i].is_count
                                       ? describe(DType::kI64, {})
                                       : describe(entry.parameter.dtype(), entry.parameter.shape());
        const Tensor& value = found->second;
        const std::string got =
            value.defined() ? describe(value.dtype(), value.shape()) : "an undefined tensor";
        if (got != wanted) {
          problems.push_back(absl::StrCat(name, ": want ", wanted, ", got ", got));
        }
        values.erase(found);
      }
      if (!stepped) continue;
      for (const std::string& name : missing) problems.push_back(absl::StrCat(name, " is missing"));
    }
  }
  for (const auto& [name, tensor] : values) {
    problems.push_back(absl::StrCat(name, " is unexpected"));
  }
  throw_if_any(problems, "load_named_state");
}

void Optimizer::load_named_state(const NamedTensors& state) {
  check_named_state(state);
  NoGrad no_grad;
  const std::map<std::string, Tensor> values(state.begin(), state.end());
  const std::vector<StateKind> kinds = state_kinds();
  for (Group& group : groups_) {
    for (Entry& entry : group.entries) {
      for (size_t i = 0; i < kinds.size(); ++i) {
        const auto found = values.find(absl::StrCat(kinds[i].name, ".", entry.name));
        if (found == values.end()) {
          entry.state[i] = Tensor();
          continue;
        }
        entry.state[i] = make_state(kinds[i], entry.parameter);
        entry.state[i].copy_(found->second);
      }
    }
  }
}

NamedTensors named(const std::vector<Tensor>& tensors) {
  NamedTensors out;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool has_name = tensors[i].defined() && !tensors[i].name().empty();
    out.emplace_back(has_name ? tensors[i].name() : absl::StrCat("parameter.", i), tensors[i]);
  }
  return out;
}

}  // namespace lockstep::nn
