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

// x where it is over 0, else negative_slope x.
class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(double negative_slope = 0.01) : negative_slope_(negative_slope) {}
  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  double negative_slope_;
};

enum class Approximate { kNone, kTanh };

// x Phi(x), exact (by the error function), or with the tanh of Hendrycks and Gimpel (2016).
class GELU : public Module {
 public:
  explicit GELU(Approximate approximate = Approximate::kNone) : approximate_(approximate) {}
  Tensor forward(const Tensor& x) override;
  std::string extra_repr() const override;

 private:
  Approximate approximate_;
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
