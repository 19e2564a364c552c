#include "lockstep/nn/activation.h"

#include "absl/strings/str_cat.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/softmax.h"

namespace lockstep::nn {

Tensor ReLU::forward(const Tensor& x) { return relu(x); }

Tensor LeakyReLU::forward(const Tensor& x) { return leaky_relu(x, negative_slope_); }
std::string LeakyReLU::extra_repr() const {
  return absl::StrCat("negative_slope=", negative_slope_);
}

Tensor GELU::forward(const Tensor& x) {
  return approximate_ == Approximate::kTanh ? gelu_tanh(x) : gelu(x);
}
std::string GELU::extra_repr() const {
  return approximate_ == Approximate::kTanh ? "approximate=tanh" : "";
}

Tensor Sigmoid::forward(const Tensor& x) { return sigmoid(x); }
Tensor Tanh::forward(const Tensor& x) { return tanh(x); }
Tensor SiLU::forward(const Tensor& x) { return silu(x); }
Tensor Softplus::forward(const Tensor& x) { return softplus(x); }

Tensor Softmax::forward(const Tensor& x) { return softmax(x, dim_); }
std::string Softmax::extra_repr() const { return absl::StrCat("dim=", dim_); }

Tensor LogSoftmax::forward(const Tensor& x) { return log_softmax(x, dim_); }
std::string LogSoftmax::extra_repr() const { return absl::StrCat("dim=", dim_); }

}  // namespace lockstep::nn
