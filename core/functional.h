#pragma once

#include <functional>
#include <utility>

#include "lockstep/core/autograd.h"

// Derivatives of functions, beside those of graphs in autograd.h.
namespace lockstep {

using TensorsFunction = std::function<Tensors(const Tensors&)>;

// The results of `function` at `inputs`, and for each input the gradient of the sum of results
// times `cotangents` (one for each result, in its shape). An input that does not matter has a
// gradient of zeros. With create_graph the gradients can be differentiated in turn, also by inputs
// that are results of recorded ops. Leaves' grad() is left alone.
struct VjpResult {
  Tensors outputs;
  Tensors gradients;
};
VjpResult vjp(const TensorsFunction& function, const Tensors& inputs, const Tensors& cotangents,
              BackwardOptions options = {});

// The results of `function` at `inputs`, and for each result its derivative in the direction
// `tangents` (one for each input, in its shape), by two backward passes: the gradient is linear in
// the cotangents, and its own gradient is the derivative asked for.
struct JvpResult {
  Tensors outputs;
  Tensors derivatives;
};
JvpResult jvp(const TensorsFunction& function, const Tensors& inputs, const Tensors& tangents,
              BackwardOptions options = {});

// function(inputs) with nothing kept for backward but the inputs: backward calls the function again
// (Chen et al., 2016), which saves the memory of all that is computed inside for the time of one
// more forward. Gradients of any order are those of a plain call, for the inputs and for every leaf
// that the function uses.
//
//   Tensor y = gradient_checkpoint([&](const Tensors& x) { return block->forward(x[0]); }, {h});
//
// The function must compute the same in both calls. It sees the same default_generator() numbers,
// so that dropout is right; what else it changes it changes twice (running statistics of batch
// norm). Tensors of the graph that it uses must be inputs: one that it captured is an
// Error(kInvalidArgument), as is an input or a leaf that was changed in place between the calls.
Tensor gradient_checkpoint(const std::function<Tensor(const Tensors&)>& function,
                           const Tensors& inputs);

}  // namespace lockstep
