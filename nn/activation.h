#pragma once

#include "lockstep/nn/module.h"

namespace lockstep::nn {

// Element-wise functions as modules; see core/ops/elementwise.h for each.

class ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

// x Phi(x), exact (by the error function).
class GELU : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

class Sigmoid : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

class Tanh : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

}  // namespace lockstep::nn
