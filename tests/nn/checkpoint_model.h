#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/autograd.h"
#include "lockstep/core/tensor.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/module.h"

// A small model and its training, for the tests of checkpoints.
namespace lockstep::nn::testing {

// Values that differ by seed and index.
inline Tensor pattern_tensor(const Shape& shape, int seed) {
  Tensor tensor = Tensor::empty(shape);
  float* data = tensor.data<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    data[i] = std::sin(static_cast<float>(i + 1) * 0.7f + static_cast<float>(seed));
  }
  return tensor;
}

class Net : public Module {
 public:
  explicit Net(int seed, const Shape& weight_shape = {3, 5}, DType bias_dtype = DType::kF32)
      : weight_(pattern_tensor(weight_shape, seed)),
        bias_(pattern_tensor({7}, seed + 1).to(bias_dtype)),
        mean_(pattern_tensor({5}, seed + 2)),
        count_(Tensor::full({}, seed, {DType::kI64})),
        scratch_(pattern_tensor({2}, seed + 3)) {
    register_parameter("weight", weight_);
    register_parameter("bias", bias_);
    register_buffer("mean", mean_);
    register_buffer("count", count_);
    register_buffer("scratch", scratch_, /*persistent=*/false);
  }

  // A gradient that depends on the step, for optimisers.
  void set_gradients(int step) {
    for (const Tensor& parameter : parameters()) {
      Tensor target = parameter;
      target.set_grad(pattern_tensor(parameter.shape(), 100 + step).to(parameter.dtype()));
    }
  }

 private:
  Tensor weight_, bias_, mean_, count_, scratch_;
};

// Holds a module under a name: every name of `inner` gets "name." before it.
class Holder : public Module {
 public:
  Holder(const std::string& name, std::shared_ptr<Module> inner) {
    register_module(name, std::move(inner));
  }
};

// The bytes of a tensor's elements, row-major.
inline std::string bytes_of(const Tensor& tensor) {
  NoGrad no_grad;
  const Tensor dense = tensor.contiguous();
  std::string bytes(static_cast<size_t>(dense.nbytes()), '\0');
  if (!bytes.empty()) std::memcpy(bytes.data(), dense.view().data, bytes.size());
  return bytes;
}

inline std::string bytes_of(const NamedTensors& tensors) {
  std::string bytes;
  for (const auto& [name, tensor] : tensors) bytes += name + bytes_of(tensor);
  return bytes;
}

}  // namespace lockstep::nn::testing
