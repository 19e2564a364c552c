#include "lockstep/core/autograd.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/anomaly.h"
#include "lockstep/core/engine.h"
#include "lockstep/core/watch.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/small_blocks.h"
#include "lockstep/kernels/stream.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

thread_local bool recording = true;

// Nodes that nobody holds any more. Freeing one lets go of those it came from: the outermost call
// frees them in a loop, so that a graph of any depth is freed without recursion.
thread_local Node* dead = nullptr;
thread_local bool freeing = false;

void free_node(Node* node) {
  node->next_dead = dead;
  dead = node;
  if (freeing) return;
  freeing = true;
  while (dead != nullptr) {
    Node* next = std::exchange(dead, dead->next_dead);
    next->~Node();
    give_small_block(next, sizeof(Node));
  }
  freeing = false;
}

}  // namespace

uint64_t engine::next_sequence() {
  static std::atomic<uint64_t> counter{0};
  return counter.fetch_add(1, std::memory_order_relaxed);
}

bool grad_enabled() { return recording; }

GradMode::GradMode(bool enabled) : before_(recording) { recording = enabled; }
GradMode::~GradMode() { recording = before_; }

std::shared_ptr<Node> Node::make() {
  Node* node = new (take_small_block(sizeof(Node))) Node;
  return {node, &free_node, SmallBlockAllocator<Node>()};
}

// What the tensor is now, out of the graph, for nobody to see but backward.
Tensor Saved::now(const Tensor& tensor) {
  const TensorImpl& from = *tensor.impl();
  return Tensor(make_small_shared<TensorImpl>(from.storage, from.offset, from.shape, from.strides,
                                              from.dtype));
}

Saved::Saved(const Tensor& tensor) {
  if (!tensor.defined()) return;
  version_ = tensor.version();
  if (tensor.requires_grad() && tensor.is_leaf()) {
    tensor_ = tensor;  // the leaf itself, for its gradient
    storage_ = tensor.impl()->storage;
    return;
  }
  // An op in place, or set_data(), gives the caller's handle other memory.
  tensor_ = now(tensor);
  tensor_.impl()->grad_fn = tensor.impl()->grad_fn;
}

Saved Saved::result(const Tensor& tensor) {
  Saved saved;
  saved.version_ = tensor.version();
  saved.tensor_ = now(tensor);  // a constant; connected to its node by get()
  saved.is_result_ = true;
  return saved;
}

Tensor Saved::get() const {
  if (!tensor_.defined()) return tensor_;
  const Storage& storage = *tensor_.impl()->storage;
  const uint64_t version = tensor_.version();
  const bool replaced = storage_ != nullptr && storage_.get() != &storage;
  const std::shared_ptr<Node>& node = engine::current_node();
  if (version != version_ || replaced) {
    const std::string_view op = node == nullptr ? "backward" : node->op;
    throw Error(ErrorCode::kInvalidArgument, op,
                str_cat("backward of '", op, "' needs a tensor of shape ",
                        to_string(tensor_.shape()), " that was changed in place by '",
                        replaced ? "set_data" : storage.last_change.load(),
                        "' after the op saved it: saved at version ", version_, ", now at version ",
                        version, "; change a clone() instead"));
  }
  if (!is_result_ || node == nullptr || !grad_enabled()) return tensor_;
  Tensor connected = tensor_.detach();
  connected.impl()->grad_fn = node;
  return connected;
}

Tensor Saved::reuse() const {
  if (!tensor_.defined() || storage_ != nullptr || !engine::releases_graph()) return {};
  const std::shared_ptr<Storage>& storage = tensor_.impl()->storage;
  const Device device = storage->device;
  const bool is_ours =
      storage.use_count() == 1 && storage->memory.use_count() == 1 &&
      (device.is_cpu() || is_of_one_stream(storage->memory.get(), current_stream(device)));
  return is_ours && tensor_.is_contiguous() ? now(tensor_) : Tensor();
}

Edge edge_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  const auto& impl = tensor.impl();
  if (impl->grad_fn != nullptr) return {impl->grad_fn, nullptr};
  if (impl->requires_grad) return {nullptr, impl};
  return {};
}

bool would_record(std::initializer_list<const Tensor*> inputs) {
  return grad_enabled() && std::any_of(inputs.begin(), inputs.end(),
                                       [](const Tensor* input) { return input->requires_grad(); });
}

Tensor record(std::string_view op, Tensor result, std::initializer_list<Tensor> inputs,
              BackwardFunction backward) {
  return record(op, std::move(result), std::span<const Tensor>(inputs.begin(), inputs.size()),
                std::move(backward));
}

Tensor record(std::string_view op, Tensor result, std::span<const Tensor> inputs,
              BackwardFunction backward) {
  if (!grad_enabled()) return result;
  const auto requires_grad = [](const Tensor& input) { return input.requires_grad(); };
  if (std::none_of(inputs.begin(), inputs.end(), requires_grad)) return result;

  auto node = Node::make();
  node->op = op;
  node->sequence = engine::next_sequence();
  node->shape = result.shape();
  node->dtype = result.dtype();
  node->device = result.device();
  for (const Tensor& input : inputs) {
    Edge& edge = node->inputs.emplace_back(edge_of(input));
    // Of constants nobody asks for it.
    if (edge.needs_grad()) {
      node->input_shapes.emplace_back(input.shape());
      node->input_dtypes.push_back(input.dtype());
    } else {
      node->input_shapes.emplace_back();
      node->input_dtypes.push_back(DType::kF32);
    }
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
