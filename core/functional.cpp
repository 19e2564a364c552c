#include "lockstep/core/functional.h"

#include "absl/container/flat_hash_set.h"
#include "lockstep/core/autocast.h"
#include "lockstep/core/engine.h"
#include "lockstep/core/random.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

void check_directions(std::string_view op, const Tensors& points, const Tensors& directions,
                      std::string_view what) {
  check(points.size() == directions.size(), op, [&] {
    return str_cat("want one ", what, " for each of ", points.size(), " tensors, got ",
                   directions.size());
  });
  for (size_t i = 0; i < points.size(); ++i) {
    check_same(op, points[i], directions[i]);
    check(points[i].shape() == directions[i].shape(), op, [&] {
      return str_cat("want a ", what, " of shape ", to_string(points[i].shape()), " for tensor ", i,
                     ", got ", to_string(directions[i].shape()));
    });
  }
}

// The inputs as tensors that require gradients: themselves where they do already, so that the graph
// they come from stays connected.
Tensors differentiable(const Tensors& inputs) {
  Tensors out;
  for (const Tensor& input : inputs) {
    out.push_back(input.requires_grad() ? input : input.detach().set_requires_grad());
  }
  return out;
}

// Gradients of outputs with zeros for inputs that do not matter.
Tensors gradients_of(const Tensors& outputs, const Tensors& inputs, const Tensors& cotangents,
                     BackwardOptions options) {
  Tensors roots;
  Tensors directions;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    directions.push_back(cotangents[i]);
  }
  Tensors gradients(inputs.size());
  if (!roots.empty()) gradients = grad(roots, inputs, directions, options, true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = zeros_like(inputs[i]);
  }
  return gradients;
}

Tensors detached(const Tensors& tensors) {
  Tensors out;
  for (const Tensor& tensor : tensors) out.push_back(tensor.detach());
  return out;
}

}  // namespace

VjpResult vjp(const TensorsFunction& function, const Tensors& inputs, const Tensors& cotangents,
              BackwardOptions options) {
  const EnableGrad enable;
  const Tensors x = differentiable(inputs);
  const Tensors y = function(x);
  check_directions("vjp", y, cotangents, "cotangent");
  Tensors gradients = gradients_of(y, x, cotangents, options);
  return {options.create_graph ? y : detached(y), std::move(gradients)};
}

JvpResult jvp(const TensorsFunction& function, const Tensors& inputs, const Tensors& tangents,
              BackwardOptions options) {
  check_directions("jvp", inputs, tangents, "tangent");
  const EnableGrad enable;
  const Tensors x = differentiable(inputs);
  const Tensors y = function(x);
  Tensors directions;
  for (const Tensor& output : y) directions.push_back(zeros_like(output).set_requires_grad());
  const Tensors gradients = gradients_of(y, x, directions, {.create_graph = true});
  Tensors derivatives = gradients_of(gradients, directions, tangents, options);
  return {options.create_graph ? y : detached(y), std::move(derivatives)};
}

namespace {

// The node or leaf to which the gradient of an edge goes; null where no gradient is wanted.
const void* place_of(const Edge& edge) {
  return edge.node != nullptr ? static_cast<const void*>(edge.node.get()) : edge.leaf.get();
}

// The leaves that `root` was computed from, but for those in `known`. Throws where the graph leads
// to a node that is older than `start` and not of `known`.
std::vector<std::shared_ptr<TensorImpl>> leaves_below(const Tensor& root, uint64_t start,
                                                      absl::flat_hash_set<const void*> known) {
  std::vector<std::shared_ptr<TensorImpl>> leaves;
  std::vector<Edge> stack = {edge_of(root)};
  while (!stack.empty()) {
    const Edge edge = stack.back();
    stack.pop_back();
    const void* place = place_of(edge);
    if (place == nullptr || !known.insert(place).second) continue;
    if (edge.leaf != nullptr) {
      leaves.push_back(edge.leaf);
      continue;
    }
    check(edge.node->sequence >= start, "gradient_checkpoint", [&] {
      return str_cat("the function uses a result of '", edge.node->op,
                     "' that was computed outside; pass it as an input");
    });
    for (const Edge& input : edge.node->inputs) stack.push_back(input);
  }
  return leaves;
}

// Numbers of the default generator from `state` on, until the end of the scope.
class Replay {
 public:
  explicit Replay(const Generator& state) : before_(default_generator()) {
    default_generator() = state;
  }
  ~Replay() { default_generator() = before_; }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  Generator before_;
};

}  // namespace

Tensor gradient_checkpoint(const std::function<Tensor(const Tensors&)>& function,
                           const Tensors& inputs) {
  const Generator generator = default_generator();
  if (!grad_enabled()) return function(inputs);
  const uint64_t start = engine::next_sequence();
  Tensor y = function(inputs);
  if (!y.requires_grad()) return y;

  // Everything that a gradient may flow to becomes an input of one node, and the graph of what
  // happened inside is forgotten.
  Tensors sources = inputs;
  absl::flat_hash_set<const void*> known;
  for (const Tensor& input : inputs) {
    if (const void* place = place_of(edge_of(input)); place != nullptr) known.insert(place);
  }
  for (auto& leaf : leaves_below(y, start, known)) sources.emplace_back(std::move(leaf));
  std::vector<Saved> saved(sources.begin(), sources.end());
  const size_t count = inputs.size();
  Tensor result = y.detach();
  result.impl()->set_view(false);  // of y, which goes away
  y = Tensor();
  return record(
      "gradient_checkpoint", result, sources,
      [function, saved = std::move(saved), count, generator, shape = result.shape(),
       is_autocast = Autocast::is_enabled(), autocast_dtype = Autocast::dtype()](const Tensor& g) {
        const bool create_graph = grad_enabled();
        Tensors all;
        for (const Saved& tensor : saved) all.push_back(tensor.get());
        const Replay replay(generator);
        const EnableGrad enable;
        Tensor again;
        {
          const Autocast autocast(autocast_dtype, is_autocast);
          again = function(Tensors(all.begin(), all.begin() + static_cast<int64_t>(count)));
        }
        check(again.defined() && again.shape() == shape, "gradient_checkpoint", [&] {
          return str_cat("the function gave a result of shape ", to_string(shape),
                         " in the forward pass and of ",
                         again.defined() ? to_string(again.shape()) : "nothing",
                         " in the backward pass");
        });
        return engine::partial_gradients(again, g, all, create_graph);
      });
}

}  // namespace lockstep
