#pragma once

#include <string>

#include "lockstep/core/random.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// x with each element zero with probability p, and 1 / (1 - p) times itself otherwise, so that its
// mean stays (Srivastava et al., 2014). Draws from `generator`, or from default_generator() where
// it is null. p = 1 gives zeros. Throws Error(kInvalidArgument) unless 0 <= p <= 1 and x is
// floating.
Tensor dropout(const Tensor& x, double p, Generator* generator = nullptr);

// dropout() in training mode, x itself in eval mode.
class Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);

  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  double p_;
};

}  // namespace lockstep::nn
