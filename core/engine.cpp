#include "lockstep/core/engine.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "lockstep/core/autocast.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/stream_timeline.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace engine {
namespace {

// The sum of the gradients that reached a place so far.
class Sum {
 public:
  void add(Tensor gradient) {
    if (!value_.defined()) {
      value_ = std::move(gradient);
    } else if (is_ours()) {
      value_.add_(gradient);
    } else {
      value_ = value_ + gradient;
    }
  }
  Tensor take() { return std::move(value_); }

  // To be added to in place; undefined where it must not be.
  Tensor open() const { return value_.defined() && is_ours() ? value_ : Tensor(); }

 private:
  // Whether nobody else sees value_, no graph holds it, and each element has a place of its own.
  bool is_ours() const {
    return !grad_enabled() && value_.impl().use_count() == 1 &&
           value_.impl()->storage.use_count() == 1 && value_.is_contiguous();
  }

  Tensor value_;
};

// A tensor's hooks, of which most have one, while they run.
using HookList = absl::InlinedVector<TensorImpl::Hook, 2>;

// Whether a gradient that has reached one of the inputs goes on to what that was computed from.
enum class Below { kFollow, kStop };

class Run {
 public:
  Run(BackwardOptions options, const Tensors* inputs, Below below)
      : options_(options), inputs_(inputs), below_(below) {
    options_.retain_graph = options_.retain_graph || options_.create_graph;
    if (inputs_ == nullptr) return;
    found_.resize(inputs_->size());
    for (size_t i = 0; i < inputs_->size(); ++i) {
      const Tensor& input = (*inputs_)[i];
      check(input.requires_grad(), "grad",
            [&] { return str_cat("want inputs that require a gradient, input ", i, " does not"); });
      wanted_[place(edge_of(input))].push_back(i);
    }
  }

  Tensors run(const Tensors& outputs, const Tensors& gradients);
  bool accumulates() const { return inputs_ == nullptr; }
  bool releases_graph() const { return !options_.retain_graph; }
  // The sum so far at the end of an edge, or undefined, as Sum::open() says.
  Tensor open_sum(const Edge& edge) const;

  std::shared_ptr<Node> current;
  std::vector<std::function<void()>> callbacks;
  Run* outer = nullptr;  // the run inside of which this one was started

 private:
  struct Leaf {
    std::shared_ptr<TensorImpl> impl;
    int64_t uses = 0;  // edges that have not been seen yet
    Sum sum;
  };

  static const void* place(const Edge& edge) {
    return edge.node != nullptr ? static_cast<const void*>(edge.node.get()) : edge.leaf.get();
  }
  bool is_wanted(const void* place) const { return inputs_ == nullptr || wanted_.contains(place); }
  bool stops_at(const Node& node) const { return below_ == Below::kStop && is_wanted(&node); }

  void discover(const Edge& root);
  void keep_what_leads_to_inputs();
  void visit(Node& node);
  void send(const Edge& edge, Tensor gradient);
  void finish(Leaf& leaf);
  void accumulate(TensorImpl& leaf, const Tensor& gradient) const;
  void give(const void* place, const Tensor& gradient);

  BackwardOptions options_;
  const Tensors* inputs_;
  Below below_;
  Tensors found_;
  absl::flat_hash_map<const void*, std::vector<size_t>> wanted_;
  absl::flat_hash_set<const Node*> ends_;  // nodes whose gradient is wanted, and nothing below
  std::vector<Node*> nodes_;               // held by the graph, which the outputs hold
  absl::flat_hash_map<const Node*, Sum> sums_;
  absl::flat_hash_map<const TensorImpl*, Leaf> leaves_;
};

thread_local Run* running = nullptr;

// Restores the run that was going on around this one.
class Scope {
 public:
  explicit Scope(Run* run) {
    run->outer = running;
    running = run;
  }
  ~Scope() { running = running->outer; }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

// The backward() that all others of this thread run inside of; null outside of backward().
Run* outermost() {
  Run* found = nullptr;
  for (Run* run = running; run != nullptr; run = run->outer) {
    if (run->accumulates()) found = run;
  }
  return found;
}

Tensor first_gradient(const Tensor& output, const Tensor& given, size_t i) {
  if (!given.defined()) {
    check(output.numel() == 1, "backward", [&] {
      return str_cat("want a gradient for output ", i, " of shape ", to_string(output.shape()),
                     "; only one element has an implied one of 1");
    });
    NoGrad no_grad;
    return ones_like(output);
  }
  check_same("backward", output, given);
  check(given.shape() == output.shape(), "backward", [&] {
    return str_cat("want a gradient of shape ", to_string(output.shape()), " for output ", i,
                   ", got ", to_string(given.shape()));
  });
  return given;
}

Tensors Run::run(const Tensors& outputs, const Tensors& gradients) {
  check(gradients.empty() || gradients.size() == outputs.size(), "backward", [&] {
    return str_cat("want no gradient or one for each of ", outputs.size(), " outputs, got ",
                   gradients.size());
  });
  sums_.reserve(16);  // most graphs are larger, and a table that grows from one place takes time
  for (size_t i = 0; i < outputs.size(); ++i) {
    check(outputs[i].requires_grad(), "backward", [&] {
      return str_cat("output ", i,
                     " needs no gradient: no op that made it was recorded from "
                     "a tensor that requires one");
    });
    discover(edge_of(outputs[i]));
  }
  if (inputs_ != nullptr) keep_what_leads_to_inputs();

  const GradMode mode(options_.create_graph);
  const Autocast as_recorded(DType::kBF16, false);  // every op runs in the dtypes of its forward
  for (size_t i = 0; i < outputs.size(); ++i) {
    send(edge_of(outputs[i]),
         first_gradient(outputs[i], gradients.empty() ? Tensor() : gradients[i], i));
  }
  // A node is younger than the nodes it came from, so youngest first has every gradient complete.
  std::sort(nodes_.begin(), nodes_.end(),
            [](const Node* a, const Node* b) { return a->sequence > b->sequence; });
  for (Node* node : nodes_) visit(*node);
  for (size_t i = 0; i < callbacks.size(); ++i) {
    const auto callback = std::move(callbacks[i]);  // it may queue another, which moves the list
    callback();
  }
  return std::move(found_);
}

void Run::discover(const Edge& root) {
  std::vector<const Edge*> stack = {&root};
  while (!stack.empty()) {
    const Edge& edge = *stack.back();
    stack.pop_back();
    if (edge.leaf != nullptr) {
      Leaf& leaf = leaves_[edge.leaf.get()];
      leaf.impl = edge.leaf;
      ++leaf.uses;
    } else if (edge.node != nullptr && sums_.try_emplace(edge.node.get()).second) {
      nodes_.push_back(edge.node.get());
      if (stops_at(*edge.node)) continue;
      for (const Edge& input : edge.node->inputs) stack.push_back(&input);
    }
  }
}

void Run::keep_what_leads_to_inputs() {
  std::sort(nodes_.begin(), nodes_.end(),
            [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
  absl::flat_hash_set<const void*> reach;  // inputs, and nodes from which one is reached
  const auto reaches = [&](const Edge& edge) {
    return edge.needs_grad() && (is_wanted(place(edge)) || reach.contains(place(edge)));
  };
  std::vector<Node*> kept;
  for (Node* node : nodes_) {
    if (stops_at(*node)) {  // nothing below it was discovered
      ends_.insert(node);
      kept.push_back(node);
      continue;
    }
    if (std::any_of(node->inputs.begin(), node->inputs.end(), reaches)) {
      reach.insert(node);
      kept.push_back(node);
      continue;
    }
    // Its gradient may be wanted, and nothing below it is: it is not run.
    if (is_wanted(node)) {
      ends_.insert(node);
      kept.push_back(node);
    }
    for (const Edge& edge : node->inputs) {
      if (edge.leaf != nullptr) --leaves_[edge.leaf.get()].uses;
    }
  }
  nodes_ = std::move(kept);
}

void Run::visit(Node& node) {
  Tensor gradient = sums_[&node].take();
  if (stops_at(node)) return give(&node, gradient);
  if (gradient.defined()) {
    const HookList hooks(node.hooks.begin(), node.hooks.end());  // a hook may change the list
    for (const auto& hook : hooks) {
      if (Tensor changed = hook.on_gradient(gradient); changed.defined()) {
        gradient = first_gradient(gradient, changed, 0);
      }
    }
    give(&node, gradient);
  }
  if (ends_.contains(&node)) return;
  Tensors gradients;
  if (gradient.defined()) {
    check(!node.released, node.op, [&] {
      return str_cat("backward runs a second time through '", node.op,
                     "', whose saved tensors were released by the first; pass retain_graph "
                     "to the first");
    });
    current = node.shared_from_this();
    gradients = node.backward(gradient);
    current = nullptr;
    if (gradients.size() != node.inputs.size()) {
      throw Error(ErrorCode::kInternal, node.op,
                  str_cat("backward gave ", gradients.size(), " gradients for ", node.inputs.size(),
                          " inputs"));
    }
  } else {
    gradients.resize(node.inputs.size());
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!node.inputs[i].needs_grad()) continue;
    Tensor& part = gradients[i];
    if (part.defined() && part.dtype() != node.input_dtypes[i]) {
      throw Error(ErrorCode::kInternal, node.op,
                  str_cat("backward gave a gradient of dtype ", name(part.dtype()), " for input ",
                          i, " of ", name(node.input_dtypes[i])));
    }
    if (part.defined() && part.shape() != node.input_shapes[i]) {
      if (broadcast_shapes(part.shape(), node.input_shapes[i], node.op) != part.shape()) {
        throw Error(ErrorCode::kInternal, node.op,
                    str_cat("backward gave a gradient of shape ", to_string(part.shape()),
                            " for input ", i, " of shape ", to_string(node.input_shapes[i])));
      }
      part = sum_to(part, node.input_shapes[i]);
    }
    send(node.inputs[i], std::move(part));  // the only handle: a leaf may keep its memory
  }
  if (!options_.retain_graph) {
    node.released = true;
    node.backward = nullptr;
  }
}

void Run::send(const Edge& edge, Tensor gradient) {
  if (edge.node != nullptr) {
    if (gradient.defined()) sums_[edge.node.get()].add(std::move(gradient));
    return;
  }
  Leaf& leaf = leaves_[edge.leaf.get()];
  if (gradient.defined()) leaf.sum.add(std::move(gradient));
  if (--leaf.uses == 0) finish(leaf);
}

Tensor Run::open_sum(const Edge& edge) const {
  if (edge.node != nullptr) {
    const auto sum = sums_.find(edge.node.get());
    return sum == sums_.end() ? Tensor() : sum->second.open();
  }
  const auto leaf = leaves_.find(edge.leaf.get());
  return leaf == leaves_.end() ? Tensor() : leaf->second.sum.open();
}

void Run::finish(Leaf& leaf) {
  Tensor gradient = leaf.sum.take();
  if (!gradient.defined()) return;
  if (below_ == Below::kStop) return give(leaf.impl.get(), gradient);
  // Hooks may add or remove hooks, so the list is copied.
  const HookList hooks(leaf.impl->hooks.begin(), leaf.impl->hooks.end());
  for (const auto& hook : hooks) {
    if (hook.on_gradient == nullptr) continue;
    if (Tensor changed = hook.on_gradient(gradient); changed.defined()) {
      gradient = first_gradient(gradient, changed, 0);
    }
  }
  give(leaf.impl.get(), gradient);
  if (inputs_ != nullptr) return;
  accumulate(*leaf.impl, gradient);
  gradient = Tensor();
  for (const auto& hook : hooks) {
    if (hook.after_accumulation != nullptr) hook.after_accumulation(Tensor(leaf.impl));
  }
}

void Run::accumulate(TensorImpl& leaf, const Tensor& gradient) const {
  if (leaf.grad.defined()) {
    const bool recorded = options_.create_graph || leaf.grad.requires_grad();
    leaf.grad = recorded ? leaf.grad + gradient : leaf.grad.add_(gradient);
    return;
  }
  // Steal the memory where nobody else can see it, which is the rule: one handle in Run::finish.
  const bool unshared = gradient.impl().use_count() == 1 &&
                        gradient.impl()->storage.use_count() == 1 &&
                        gradient.strides() == leaf.strides;
  leaf.grad = unshared ? gradient : clone(gradient);
}

void Run::give(const void* place, const Tensor& gradient) {
  if (inputs_ == nullptr) return;
  if (const auto it = wanted_.find(place); it != wanted_.end()) {
    for (size_t i : it->second) found_[i] = gradient;
  }
}

}  // namespace

Tensors run(const Tensors& outputs, const Tensors& gradients, BackwardOptions options,
            const Tensors* inputs) {
  const char* name = inputs == nullptr ? "backward" : "grad";
  const timeline::Span span(timeline::kind::kBackward, name);
  const bool has_output = !outputs.empty() && outputs[0].defined();
  const timeline::StreamSpan on_device(timeline::kind::kBackward, name,
                                       has_output ? outputs[0].device() : kCpu);
  Run run(options, inputs, Below::kFollow);
  const Scope scope(&run);
  return run.run(outputs, gradients);
}

Tensors partial_gradients(const Tensor& output, const Tensor& gradient, const Tensors& inputs,
                          bool create_graph) {
  Tensors wanted;
  std::vector<size_t> places;
  absl::flat_hash_set<const void*> seen;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Edge edge = edge_of(inputs[i]);
    if (!edge.needs_grad()) continue;
    const void* place = edge.node != nullptr ? static_cast<const void*>(edge.node.get())
                                             : static_cast<const void*>(edge.leaf.get());
    if (!seen.insert(place).second) continue;
    wanted.push_back(inputs[i]);
    places.push_back(i);
  }
  Run run({.create_graph = create_graph}, &wanted, Below::kStop);
  const Scope scope(&run);
  const Tensors found = run.run({output}, {gradient});
  Tensors out(inputs.size());
  for (size_t k = 0; k < places.size(); ++k) out[places[k]] = found[k];
  return out;
}

const std::shared_ptr<Node>& current_node() {
  static const std::shared_ptr<Node> none;
  return running == nullptr ? none : running->current;
}

bool releases_graph() { return running != nullptr && running->releases_graph(); }

Tensor open_sum(size_t index) {
  const std::shared_ptr<Node>& node = current_node();
  return node == nullptr ? Tensor() : running->open_sum(node->inputs[index]);
}

}  // namespace engine

void queue_backward_callback(std::function<void()> callback) {
  check(in_backward(), "queue_backward_callback", "no backward is running");
  engine::outermost()->callbacks.push_back(std::move(callback));
}

bool in_backward() { return engine::running != nullptr && engine::running->accumulates(); }

bool wants_gradient(size_t index) {
  const std::shared_ptr<Node>& node = engine::current_node();
  return node == nullptr || node->inputs[index].needs_grad();
}

}  // namespace lockstep
