#include "lockstep/nn/checkpoint/match.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_join.h"
#include "lockstep/core/autograd.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

constexpr std::string_view kForeignPrefix = "module.";

std::string describe(const Tensor& tensor) {
  return str_cat(name(tensor.dtype()), " ", to_string(tensor.shape()));
}

bool all_foreign(const NamedTensors& tensors) {
  return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [](const auto& entry) {
    return entry.first.starts_with(kForeignPrefix);
  });
}

bool begins_with_one(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

void append_list(std::string& text, std::string_view title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += str_cat("\n  ", title, " (", names.size(), "):");
  for (const std::string& name : names) text += "\n    " + name;
}

}  // namespace

void LoadPlan::check(bool strict) const {
  const bool differs =
      !report.missing.empty() || !report.unexpected.empty() || !report.mismatched.empty();
  const bool nothing = (report.loaded == 0 && differs) || part_without_match;
  if (!nothing && !(strict && differs)) return;
  const bool from_file = !report.path.empty();
  std::string text = from_file ? report.path.string() : "the state dict";
  text += !nothing                    ? " does not fit"
          : report.mismatched.empty() ? " has no name that matches a module's"
                                      : " has nothing of the right shape and dtype";
  append_list(text, "missing: wanted, not in the checkpoint", report.missing);
  append_list(text, "unexpected: in the checkpoint, not wanted", report.unexpected);
  append_list(text, "mismatched", report.mismatched);
  if (!nothing) text += "\n  load with strict = false to take what matches";
  throw Error(ErrorCode::kMismatch, from_file ? "load_checkpoint" : "load_state_dict", text);
}

void LoadPlan::keep_only(const std::vector<std::string>& prefixes) {
  if (prefixes.empty()) return;
  std::erase_if(report.missing,
                [&](const std::string& name) { return !begins_with_one(name, prefixes); });
  if (report.loaded > 0 || !report.mismatched.empty()) return;
  throw Error(ErrorCode::kMismatch, "load_checkpoint",
              str_cat(report.path.string(), " and this program have nothing in common whose name ",
                      "begins with '", absl::StrJoin(prefixes, "' or '"), "'"));
}

Contents select_contents(const Contents& contents, const LoadOptions& options) {
  Contents selected;
  std::unordered_set<std::string> seen;
  const auto new_name = [&](const std::string& name) {
    for (const auto& [from, to] : options.rename) {
      if (name.starts_with(from)) return to + name.substr(from.size());
    }
    return name;
  };
  const auto take = [&](const std::string& old, std::string& name) {
    name = new_name(old);
    if (!options.only.empty() && !begins_with_one(name, options.only)) return false;
    if (seen.insert(name).second) return true;
    throw Error(
        ErrorCode::kMismatch, "load_checkpoint",
        str_cat("the rules of renaming make '", name, "' of two names, one of them '", old, "'"));
  };
  std::string name;
  for (const auto& [old, tensor] : contents.tensors) {
    if (take(old, name)) selected.tensors.emplace_back(name, tensor);
  }
  for (const NamedValue& value : contents.values) {
    if (take(value.name, name)) selected.values.push_back({name, value.value});
  }
  return selected;
}

void LoadPlan::apply() const {
  NoGrad no_grad;
  for (const auto& action : set_numbers) action();
  for (const auto& action : copy_tensors) action();
}

int64_t match_tensors(const NamedTensors& wanted, const NamedTensors& stored,
                      const std::string& prefix, LoadPlan& plan) {
  std::unordered_map<std::string, Tensor> rest(stored.begin(), stored.end());
  int64_t matched = 0;
  for (const auto& [inner, tensor] : wanted) {
    const auto found = rest.find(inner);
    if (found == rest.end()) {
      plan.report.missing.push_back(prefix + inner);
      continue;
    }
    const Tensor source = found->second;
    rest.erase(found);
    if (!tensor.defined() || source.shape() != tensor.shape() || source.dtype() != tensor.dtype()) {
      plan.report.mismatched.push_back(str_cat(prefix, inner, ": want ",
                                               tensor.defined() ? describe(tensor) : "nothing",
                                               ", got ", describe(source)));
      continue;
    }
    ++matched;
    plan.copy_tensors.push_back([target = tensor, source]() mutable { target.copy_(source); });
  }
  for (const auto& [inner, tensor] : stored) {
    if (rest.contains(inner)) plan.report.unexpected.push_back(prefix + inner);
  }
  plan.report.loaded += matched;
  return matched;
}

void match_values(const std::vector<NamedValue>& wanted, const Contents& stored,
                  const std::string& prefix, LoadPlan& plan,
                  const std::function<void(const std::string&, const Value&)>& accept) {
  std::unordered_map<std::string, Value> rest;
  for (const NamedValue& value : stored.values) rest.emplace(value.name, value.value);
  for (const NamedValue& value : wanted) {
    const std::string inner = value.name.substr(prefix.size());
    const auto found = rest.find(inner);
    if (found == rest.end()) {
      plan.report.missing.push_back(value.name);
      continue;
    }
    if (found->second.index() != value.value.index()) {
      plan.report.mismatched.push_back(str_cat(value.name, ": want a value of ",
                                               type_name(value.value), ", got ",
                                               type_name(found->second)));
    } else {
      ++plan.report.loaded;
      accept(inner, found->second);
    }
    rest.erase(found);
  }
  for (const NamedValue& value : stored.values) {
    if (rest.contains(value.name)) plan.report.unexpected.push_back(prefix + value.name);
  }
  for (const auto& [inner, tensor] : stored.tensors) {
    plan.report.unexpected.push_back(prefix + inner);
  }
}

void plan_module(Module& module, const std::string& prefix, const NamedTensors& stored,
                 LoadPlan& plan) {
  const NamedTensors wanted = state_dict(module);
  NamedTensors renamed = stored;
  if (!wanted.empty() && !stored.empty() && all_foreign(stored) != all_foreign(wanted)) {
    plan.report.prefix_changed = true;
    for (auto& [inner, tensor] : renamed) {
      inner = all_foreign(stored) ? inner.substr(kForeignPrefix.size())
                                  : std::string(kForeignPrefix) + inner;
    }
  }
  const int64_t matched = match_tensors(wanted, renamed, prefix, plan);
  if (matched == 0 && !wanted.empty() && !stored.empty()) plan.part_without_match = true;
}

}  // namespace lockstep::nn
