#pragma once

#include <functional>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

// call() with other tensors in the place of parameters and buffers of `module`, by name; all that
// are not named keep their own. The tensors may be results of recorded ops, and gradients flow
// through them, so that a step of an optimiser can be differentiated:
//
//   NamedTensors fast = net->named_parameters();
//   const Tensors gradients = grad({loss(net->forward(x))}, values, {}, {.create_graph = true});
//   for (size_t i = 0; i < fast.size(); ++i) fast[i].second = fast[i].second - lr * gradients[i];
//   Tensor y = functional_call(*net, fast, x);
//
// A tensor that the module holds under several names is replaced under all of them. Throws
// Error(kInvalidArgument) that lists every name that the module does not have and every tensor of
// another shape or device. The module has its own tensors again when this returns or throws.
Tensor functional_call(Module& module, const NamedTensors& tensors,
                       const std::function<Tensor()>& call);
// module.forward(x) in the same way.
Tensor functional_call(Module& module, const NamedTensors& tensors, const Tensor& x);

}  // namespace lockstep::nn
