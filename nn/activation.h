#pragma once

#include <cstdint>
#include <string>

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

// x sigmoid(x).
class SiLU : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

// log(1 + exp(x)).
class Softplus : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

// Along dimension `dim`.
class Softmax : public Module {
 public:
  explicit Softmax(int64_t dim) : dim_(dim) {}
  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  int64_t dim_;
};

class LogSoftmax : public Module {
 public:
  explicit LogSoftmax(int64_t dim) : dim_(dim) {}
  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  int64_t dim_;
};

}  // namespace lockstep::nn
