#include "lockstep/nn/functional.h"

#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_join.h"
#include "lockstep/core/autograd.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

// What an array object shows of a tensor: all but its name, its gradient and its hooks.
struct Shown {
  std::shared_ptr<Storage> storage;
  int64_t offset;
  Strides strides;
  DType dtype;
  bool requires_grad;
  std::shared_ptr<Node> grad_fn;
};

void show(TensorImpl& impl, const Shown& s) {
  impl.storage = s.storage;
  impl.offset = s.offset;
  impl.strides = s.strides;
  impl.dtype = s.dtype;
  impl.requires_grad = s.requires_grad;
  impl.grad_fn = s.grad_fn;
}

Shown shown(const TensorImpl& impl) {
  return {impl.storage, impl.offset, impl.strides, impl.dtype, impl.requires_grad, impl.grad_fn};
}

// The array objects of a module's tensors show others, until the end of the scope. Whoever holds
// them, under whatever name, sees these, and what the graph saves of them it saves as they are now.
class Replaced {
 public:
  Replaced(Module& module, const NamedTensors& tensors) {
    std::vector<std::string> problems;
    NamedTensors own = module.named_parameters();
    for (auto& buffer : module.named_buffers()) own.push_back(std::move(buffer));
    const std::map<std::string, Tensor> by_name(own.begin(), own.end());
    std::vector<std::pair<Tensor, Tensor>> pairs;
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
      } else if (!tensor.is_same(found->second)) {
        pairs.emplace_back(found->second, tensor);
      }
    }
    check(problems.empty(), "functional_call",
          [&] { return "want tensors that fit the module\n  " + absl::StrJoin(problems, "\n  "); });
    for (const auto& [slot, tensor] : pairs) {
      // A leaf gets its gradient through a node, since the graph must not see the slot as a leaf.
      const Tensor source = tensor.is_leaf() && tensor.requires_grad()
                                ? record("functional_call", tensor.detach(), {tensor},
                                         [](const Tensor& g) { return std::vector<Tensor>{g}; })
                                : tensor;
      before_.emplace_back(slot, shown(*slot.impl()));
      show(*slot.impl(), shown(*source.impl()));
      slot.impl()->requires_grad = false;
    }
  }
  ~Replaced() {
    for (size_t i = before_.size(); i-- > 0;) show(*before_[i].first.impl(), before_[i].second);
  }
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;

 private:
  std::vector<std::pair<Tensor, Shown>> before_;
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
