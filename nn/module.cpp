#include "lockstep/nn/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <typeinfo>
#include <unordered_set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

std::string join(const std::string& path, const std::string& name) {
  return path.empty() || name.empty() ? path + name : absl::StrCat(path, ".", name);
}

}  // namespace

Tensor Module::forward(const Tensor&) {
  throw Error(ErrorCode::kInvalidArgument, "forward",
              absl::StrCat(type_name(),
                           " has no forward of one tensor: override forward(const "
                           "Tensor&), or call the method that this class defines"));
}

std::string Module::type_name() const {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, &status), std::free);
  if (status != 0 || demangled == nullptr) return typeid(*this).name();
  const std::string full = demangled.get();
  // The last part that is no part of template arguments, or of the function that has the class.
  size_t start = 0;
  int depth = 0;
  for (size_t i = 0; i < full.size(); ++i) {
    if (absl::StrContains("<({", full[i])) ++depth;
    if (absl::StrContains(">)}", full[i])) --depth;
    if (depth == 0 && full.compare(i, 2, "::") == 0) start = i + 2;
  }
  return full.substr(start);
}

void Module::print(std::string& out, size_t indent) const {
  absl::StrAppend(&out, type_name(), "(", extra_repr());
  if (!children_.empty()) {
    for (const auto& [name, child] : children_) {
      absl::StrAppend(&out, "\n", std::string(indent + 2, ' '), "(", name, "): ");
      child->print(out, indent + 2);
    }
    absl::StrAppend(&out, "\n", std::string(indent, ' '));
  }
  absl::StrAppend(&out, ")");
}

std::string Module::to_string() const {
  std::string out;
  print(out, 0);
  return out;
}

void Module::visit(const Visitor& visitor) const {
  std::unordered_set<const Module*> seen;
  const std::function<void(const std::string&, const Module&)> walk = [&](const std::string& path,
                                                                          const Module& module) {
    if (!seen.insert(&module).second) return;
    visitor(path, module);
    for (const auto& [name, child] : module.children_) walk(join(path, name), *child);
  };
  walk("", *this);
}

NamedTensors Module::collect(std::vector<Slot> Module::*slots, bool persistent_only) const {
  NamedTensors out;
  std::unordered_set<const TensorImpl*> seen;
  visit([&](const std::string& path, const Module& module) {
    for (const Slot& slot : module.*slots) {
      Tensor tensor = *slot.tensor;
      if (!tensor.defined() || (persistent_only && !slot.persistent)) continue;
      if (!seen.insert(tensor.impl().get()).second) continue;
      const std::string full = join(path, slot.name);
      if (tensor.name() != full && !absl::EndsWith(tensor.name(), "." + full)) {
        tensor.set_name(full);
      }
      out.emplace_back(full, std::move(tensor));
    }
  });
  return out;
}

NamedTensors Module::named_parameters() const { return collect(&Module::parameters_, false); }

NamedTensors Module::named_buffers(bool persistent_only) const {
  return collect(&Module::buffers_, persistent_only);
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> out;
  for (auto& [path, tensor] : named_parameters()) out.push_back(std::move(tensor));
  return out;
}

void Module::for_each_parameter(const std::function<void(const Tensor&)>& f) const {
  for (const Slot& slot : parameters_) f(*slot.tensor);
  for (const auto& [name, child] : children_) child->for_each_parameter(f);
}

int64_t Module::parameter_count() const {
  int64_t count = 0;
  for (const Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

Module::NamedModules Module::named_modules() {
  NamedModules out;
  visit([&](const std::string& path, const Module& module) {
    std::shared_ptr<Module> held = const_cast<Module&>(module).weak_from_this().lock();
    check(held != nullptr, "named_modules", [&] {
      return absl::StrCat("want a ", type_name(),
                          " held by a shared_ptr: make it with std::make_shared, or use apply()");
    });
    out.emplace_back(path, std::move(held));
  });
  return out;
}

void Module::apply(const std::function<void(Module&)>& f) {
  visit([&](const std::string&, const Module& module) { f(const_cast<Module&>(module)); });
}

void Module::train(bool on) {
  apply([on](Module& module) { module.training_ = on; });
}

void Module::zero_grad() {
  for (Tensor& parameter : parameters()) parameter.clear_grad();
}

void Module::to(DType dtype) {
  check(is_floating(dtype), "to",
        [&] { return str_cat("want a floating dtype for ", type_name(), ", got ", name(dtype)); });
  convert([dtype](const Tensor& x) { return is_floating(x.dtype()) ? lockstep::to(x, dtype) : x; });
}

void Module::to(Device device) {
  convert([device](const Tensor& x) { return lockstep::to(x, device); });
}

void Module::convert(const std::function<Tensor(const Tensor&)>& f) {
  NoGrad no_grad;
  NamedTensors all = named_parameters();
  for (auto& buffer : named_buffers()) all.push_back(std::move(buffer));
  for (auto& [path, tensor] : all) {
    const Tensor converted = f(tensor);
    if (converted.is_same(tensor)) continue;
    const Tensor gradient = tensor.has_grad() ? tensor.grad() : Tensor();
    tensor.clear_grad();
    tensor.set_data(converted);
    if (gradient.defined()) tensor.set_grad(f(gradient));
  }
}

void Module::check_name(std::string_view op, const std::string& name) const {
  const auto is = [&](const auto& entry) { return entry.name == name; };
  check(!std::any_of(parameters_.begin(), parameters_.end(), is) &&
            !std::any_of(buffers_.begin(), buffers_.end(), is) &&
            std::none_of(children_.begin(), children_.end(),
                         [&](const auto& child) { return child.first == name; }),
        op, [&] { return absl::StrCat("the name '", name, "' is taken in ", type_name()); });
  check(!absl::StrContains(name, '.'), op, [&] {
    return absl::StrCat("want a name without a dot, got '", name, "' in ", type_name());
  });
  check(children_.empty() || !children_.front().first.empty(), op, [&] {
    return absl::StrCat("'", name, "' would mix with the names of the module that ", type_name(),
                        " registered under the empty name");
  });
}

void Module::check_slot(std::string_view op, const std::string& name, const Tensor& slot) const {
  check(!name.empty(), op,
        [&] { return absl::StrCat("want a name, got an empty one in ", type_name()); });
  check_name(op, name);
  check(slot.defined(), op, [&] {
    return absl::StrCat("want a tensor for '", name, "' of ", type_name(),
                        ", got an undefined one; leave out what does not exist");
  });
}

void Module::register_parameter(std::string name, Tensor& slot) {
  check_slot("register_parameter", name, slot);
  slot.set_name(name);
  slot.set_requires_grad();
  parameters_.push_back({std::move(name), &slot, true});
}

void Module::register_buffer(std::string name, Tensor& slot, bool persistent) {
  check_slot("register_buffer", name, slot);
  slot.set_name(name);
  buffers_.push_back({std::move(name), &slot, persistent});
}

void Module::add_child(std::string name, std::shared_ptr<Module> module) {
  check_name("register_module", name);
  check(module != nullptr, "register_module", [&] {
    return absl::StrCat("want a module for '", name, "' of ", type_name(), ", got null");
  });
  check(!name.empty() || (parameters_.empty() && buffers_.empty() && children_.empty()),
        "register_module", [&] {
          return absl::StrCat("a module under the empty name must be the only thing in ",
                              type_name(), ", which has registered others");
        });
  module->visit([&](const std::string&, const Module& below) {
    check(&below != this, "register_module",
          [&] { return absl::StrCat("'", name, "' of ", type_name(), " would contain itself"); });
  });
  children_.emplace_back(std::move(name), std::move(module));
}

}  // namespace lockstep::nn
