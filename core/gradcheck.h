#pragma once

#include <functional>
#include <string>

#include "lockstep/core/autograd.h"

namespace lockstep {

struct GradcheckOptions {
  double step = 1e-6;        // of the central difference
  double tolerance = 1e-6;   // |analytic - numeric| <= tolerance * (1 + |numeric|)
  bool second_order = true;  // check the gradient of the gradient too
};

// Compares the gradients that backward gives for `function` with central differences, for every
// element of every input that requires a gradient, and then in the same way the gradients of these
// gradients. Inputs are f64 leaves; the function is called many times and must be deterministic.
// Returns an empty string, or what differed: which input and element, and both values.
std::string gradcheck(const std::function<Tensor(const Tensors&)>& function, const Tensors& inputs,
                      GradcheckOptions options = {});

}  // namespace lockstep
