#include "lockstep/nn/functional.h"

#include <map>
#include <string>

#include "absl/strings/str_join.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

// Tensors in the slots of a module, until the end of the scope.
class Replaced {
 public:
  Replaced(Module& module, const NamedTensors& tensors) {
    std::map<const TensorImpl*, Tensor> by_tensor;
    std::vector<std::string> problems;
    NamedTensors own = module.named_parameters();
    for (auto& buffer : module.named_buffers()) own.push_back(std::move(buffer));
    const std::map<std::string, Tensor> by_name(own.begin(), own.end());
    for (const auto& [name, tensor] : tensors) {
      const auto found = by_name.find(name);
      if (found == by_name.end()) {
        problems.push_back(str_cat(name, ": the module has no such parameter or buffer"));
      } else if (!tensor.defined() || tensor.shape() != found->second.shape() ||
                 tensor.device() != found->second.device()) {
        problems.push_back(str_cat(name, ": want shape ", to_string(found->second.shape()), " on ",
                                   found->second.device().name(), ", got ",
                                   tensor.defined()
                                       ? to_string(tensor.shape()) + " on " + tensor.device().name()
                                       : "an undefined tensor"));
      } else {
        by_tensor.emplace(found->second.impl().get(), tensor);
      }
    }
    check(problems.empty(), "functional_call",
          [&] { return "want tensors that fit the module\n  " + absl::StrJoin(problems, "\n  "); });
    module.apply([&](Module& part) {
      part.for_each_slot([&](Tensor& slot) {
        const auto found = by_tensor.find(slot.impl().get());
        if (found == by_tensor.end()) return;
        before_.emplace_back(&slot, slot);
        slot = found->second;
      });
    });
  }
  ~Replaced() {
    for (auto& [slot, tensor] : before_) *slot = tensor;
  }
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;

 private:
  std::vector<std::pair<Tensor*, Tensor>> before_;
};

}  // namespace

Tensor functional_call(Module& module, const NamedTensors& tensors,
                       const std::function<Tensor()>& call) {
  const Replaced replaced(module, tensors);
  return call();
}

Tensor functional_call(Module& module, const NamedTensors& tensors, const Tensor& x) {
  return functional_call(module, tensors, [&] { return module.forward(x); });
}

}  // namespace lockstep::nn
