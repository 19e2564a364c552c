#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "lockstep/core/tensor.h"

// The graph of gradients. An op computes its result and hands it to record() with a function that
// turns the gradient of the result into one gradient for each input:
//
//   Tensor exp(const Tensor& x) {
//     Tensor y = /* run the kernel */;
//     return record("exp", y, {x}, [y = Saved::result(y)](const Tensor& g) {
//       return Tensors{g * y.get()};
//     });
//   }
//
// The function is written in differentiable ops, so that gradients of any order exist. It may use a
// fused kernel while grad_enabled() is false, which it is unless backward runs with create_graph.
namespace lockstep {

using Tensors = std::vector<Tensor>;

// Returns one gradient for each input, in order; undefined means that none flows there. A gradient
// may have the shape that the input was broadcast to: the engine sums it back.
using BackwardFunction = std::function<Tensors(const Tensor& gradient)>;

// Whether ops of this thread are recorded. True at first.
bool grad_enabled();

// Switches recording on or off for this thread until the end of the scope.
class GradMode {
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool before_;
};

class NoGrad : public GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

class EnableGrad : public GradMode {
 public:
  EnableGrad() : GradMode(true) {}
};

// A tensor that a backward function needs, and a watch that it does not change until then.
class Saved {
 public:
  Saved() = default;  // an undefined tensor
  // An input of the op, or any other tensor. An undefined tensor stays undefined.
  Saved(const Tensor& tensor);  // NOLINT: implicit, so that captures read [x = Saved(x)]
  // The op's own result. Capturing the result itself would make a circle that is never freed.
  static Saved result(const Tensor& tensor);

  // The tensor. Throws Error(kInvalidArgument) where it was changed in place since: the message
  // names the op that saved it, the op that changed it and both versions.
  Tensor get() const;
  // The tensor's memory, for a gradient that takes its place; what get() gave changes with it.
  // Undefined unless nobody else has that memory, be it on another stream, it has no gaps, and
  // backward releases the graph.
  Tensor reuse() const;

 private:
  static Tensor now(const Tensor& tensor);

  Tensor tensor_;
  std::shared_ptr<Storage> storage_;  // of a leaf when it was saved: set_data() can change it
  uint64_t version_ = 0;
  bool is_result_ = false;
};

// Whether record() with these inputs would make a node. An op that finds it false need not save
// anything.
bool would_record(std::initializer_list<const Tensor*> inputs);

// Makes `result` the output of a node of the graph if recording is on and any input requires a
// gradient; else leaves it a constant. Returns `result`. `op` must be a static string.
Tensor record(std::string_view op, Tensor result, std::initializer_list<Tensor> inputs,
              BackwardFunction backward);
Tensor record(std::string_view op, Tensor result, std::span<const Tensor> inputs,
              BackwardFunction backward);

// Where an input of a node came from: another node, or a leaf, or neither (a constant).
struct Edge {
  std::shared_ptr<Node> node;
  std::shared_ptr<TensorImpl> leaf;

  bool needs_grad() const { return node != nullptr || leaf != nullptr; }
};

// One recorded op. Library-internal.
struct Node : std::enable_shared_from_this<Node> {
  // Frees graphs of any depth without recursion, as all nodes must be made.
  static std::shared_ptr<Node> make();

  std::string_view op;
  uint64_t sequence = 0;  // grows with time: every node is younger than those it came from
  Shape shape;            // of the result
  DType dtype = DType::kF32;
  Device device;
  absl::InlinedVector<Edge, 2> inputs;
  absl::InlinedVector<Shape, 2> input_shapes;
  absl::InlinedVector<DType, 4> input_dtypes;
  BackwardFunction backward;
  bool released = false;  // what it saved is gone
  std::vector<TensorImpl::Hook> hooks;
  Node* next_dead = nullptr;  // of those that make()'s deleter has yet to free
};

Edge edge_of(const Tensor& tensor);

// Adds the gradients of `outputs` to the grad of every leaf below them. `gradients` is empty, or
// holds one tensor (or an undefined one, for an output of one element) for each output.
//
// Throws Error(kInvalidArgument) that names the op for: an output that needs no gradient; a second
// run through a graph whose saved tensors were released; a saved tensor changed in place; a
// gradient of another shape or dtype. Gradients that were added before an error stay added.
void backward(const Tensors& outputs, const Tensors& gradients = {}, BackwardOptions options = {});

// The gradients of the sum of `outputs` with respect to `inputs`, which may be leaves or results;
// grad() of leaves is left alone and no post-accumulation hook runs. An input that the outputs do
// not depend on is an error, unless allow_unused, which gives an undefined tensor.
Tensors grad(const Tensors& outputs, const Tensors& inputs, const Tensors& gradients = {},
             BackwardOptions options = {}, bool allow_unused = false);

// Runs `callback` once in this thread at the end of the outermost backward() that is running, after
// the last gradient was accumulated (a backward function may call backward() itself, as gradient
// checkpointing does). What it throws comes out of backward(). It is dropped when that backward
// fails first. Throws Error(kInvalidArgument) unless in_backward().
void queue_backward_callback(std::function<void()> callback);

// True inside backward() of this thread, where leaves accumulate; not inside grad().
bool in_backward();

// Inside a backward function: whether the gradient of input `index` has somewhere to go. An
// expensive one need not be computed otherwise.
bool wants_gradient(size_t index);

}  // namespace lockstep
