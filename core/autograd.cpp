#include "lockstep/core/autograd.h"

#include "lockstep/core/anomaly.h"
#include "lockstep/core/engine.h"
#include "lockstep/core/watch.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

thread_local bool recording = true;

// What dying nodes hold. The outermost destructor empties it in a loop, so that a graph of any
// depth is freed without recursion.
struct Remains {
  BackwardFunction backward;
  std::vector<Edge> inputs;
};
thread_local std::vector<Remains>* remains = nullptr;

}  // namespace

uint64_t engine::next_sequence() {
  static std::atomic<uint64_t> counter{0};
  return counter.fetch_add(1, std::memory_order_relaxed);
}

bool grad_enabled() { return recording; }

GradMode::GradMode(bool enabled) : before_(recording) { recording = enabled; }
GradMode::~GradMode() { recording = before_; }

Node::~Node() {
  if (backward == nullptr && inputs.empty()) return;
  if (remains != nullptr) {
    remains->push_back({std::move(backward), std::move(inputs)});
    return;
  }
  std::vector<Remains> list;
  list.push_back({std::move(backward), std::move(inputs)});
  remains = &list;
  while (!list.empty()) {
    const Remains last = std::move(list.back());
    list.pop_back();
  }
  remains = nullptr;
}

Saved::Saved(const Tensor& tensor) {
  if (!tensor.defined()) return;
  storage_ = tensor.impl()->storage;
  version_ = tensor.version();
  if (tensor.requires_grad() && tensor.is_leaf()) {
    tensor_ = tensor;  // the leaf itself, for its gradient
    return;
  }
  // What the tensor is now: an op in place, or set_data(), gives the caller's handle other memory.
  tensor_ = tensor.detach();
  tensor_.impl()->set_view(false);  // nobody sees it
  tensor_.impl()->grad_fn = tensor.impl()->grad_fn;
}

Saved Saved::result(const Tensor& tensor) {
  Saved saved;
  saved.storage_ = tensor.impl()->storage;
  saved.version_ = tensor.version();
  saved.tensor_ = tensor.detach();  // a constant; connected to its node by get()
  saved.tensor_.impl()->set_view(false);
  saved.is_result_ = true;
  return saved;
}

Tensor Saved::get() const {
  if (!tensor_.defined()) return tensor_;
  const std::shared_ptr<Node> node = engine::current_node();
  const Storage& storage = *tensor_.impl()->storage;
  const uint64_t now = tensor_.version();
  if (now != version_ || &storage != storage_.get()) {
    const std::string_view op = node == nullptr ? "backward" : node->op;
    throw Error(ErrorCode::kInvalidArgument, op,
                str_cat("backward of '", op, "' needs a tensor of shape ",
                        to_string(tensor_.shape()), " that was changed in place by '",
                        &storage != storage_.get() ? "set_data" : storage.last_change.load(),
                        "' after the op saved it: saved at version ", version_, ", now at version ",
                        now, "; change a clone() instead"));
  }
  if (!is_result_ || node == nullptr || !grad_enabled()) return tensor_;
  Tensor connected = tensor_.detach();
  connected.impl()->grad_fn = node;
  return connected;
}

Edge edge_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  const auto& impl = tensor.impl();
  if (impl->grad_fn != nullptr) return {impl->grad_fn, nullptr};
  if (impl->requires_grad) return {nullptr, impl};
  return {};
}

Tensor record(std::string_view op, Tensor result, std::initializer_list<Tensor> inputs,
              BackwardFunction backward) {
  return record(op, std::move(result), std::span<const Tensor>(inputs.begin(), inputs.size()),
                std::move(backward));
}

Tensor record(std::string_view op, Tensor result, std::span<const Tensor> inputs,
              BackwardFunction backward) {
  if (!grad_enabled()) return result;
  bool any = false;
  for (const Tensor& input : inputs) any = any || input.requires_grad();
  if (!any) return result;

  auto node = std::make_shared<Node>();
  node->op = op;
  node->sequence = engine::next_sequence();
  node->shape = result.shape();
  node->dtype = result.dtype();
  node->device = result.device();
  for (const Tensor& input : inputs) {
    node->inputs.push_back(edge_of(input));
    node->input_shapes.push_back(input.defined() ? input.shape() : Shape());
    node->input_dtypes.push_back(input.defined() ? input.dtype() : DType::kF32);
  }
  node->backward =
      anomaly_enabled() ? watched(op, inputs, std::move(backward)) : std::move(backward);
  result.impl()->grad_fn = std::move(node);
  return result;
}

int64_t Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) {
  check(requires_grad(), "register_hook",
        "want a tensor that requires a gradient; nothing would ever call the hook");
  static std::atomic<int64_t> ids{0};
  auto& hooks = impl_->grad_fn != nullptr ? impl_->grad_fn->hooks : impl_->hooks;
  hooks.push_back({2 * ids.fetch_add(1), std::move(hook), nullptr});
  return hooks.back().id;
}

int64_t Tensor::register_post_accumulate_hook(std::function<void(const Tensor&)> hook) {
  check(defined() && is_leaf() && requires_grad(), "register_post_accumulate_hook",
        "want a leaf that requires a gradient; only these accumulate one");
  static std::atomic<int64_t> ids{0};
  impl_->hooks.push_back({2 * ids.fetch_add(1) + 1, nullptr, std::move(hook)});
  return impl_->hooks.back().id;
}

void Tensor::remove_hook(int64_t id) {
  check(defined(), "remove_hook", "want a tensor, got an undefined one");
  const auto matches = [id](const TensorImpl::Hook& hook) { return hook.id == id; };
  std::erase_if(impl_->hooks, matches);
  if (impl_->grad_fn != nullptr) std::erase_if(impl_->grad_fn->hooks, matches);
}

void Tensor::backward(const Tensor& gradient, BackwardOptions options) const {
  lockstep::backward({*this}, {gradient}, options);
}

void backward(const Tensors& outputs, const Tensors& gradients, BackwardOptions options) {
  engine::run(outputs, gradients, options, nullptr);
}

Tensors grad(const Tensors& outputs, const Tensors& inputs, const Tensors& gradients,
             BackwardOptions options, bool allow_unused) {
  Tensors found = engine::run(outputs, gradients, options, &inputs);
  for (size_t i = 0; i < inputs.size() && !allow_unused; ++i) {
    check(found[i].defined(), "grad", [&] {
      return str_cat("the outputs do not depend on input ", i,
                     inputs[i].name().empty() ? "" : " (" + inputs[i].name() + ")",
                     "; pass allow_unused to get an undefined tensor for it");
    });
  }
  return found;
}

}  // namespace lockstep
