#include "lockstep/nn/activation.h"

#include "lockstep/core/ops/elementwise.h"

namespace lockstep::nn {

Tensor ReLU::forward(const Tensor& x) { return relu(x); }
Tensor GELU::forward(const Tensor& x) { return gelu(x); }
Tensor Sigmoid::forward(const Tensor& x) { return sigmoid(x); }
Tensor Tanh::forward(const Tensor& x) { return tanh(x); }

}  // namespace lockstep::nn
