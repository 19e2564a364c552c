#pragma once

#include <cstdint>
#include <string>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

// x (N, C, H, W) -> (N, C * H * W) in row-major order: all dimensions from start_dim on become one.
class Flatten : public Module {
 public:
  explicit Flatten(int64_t start_dim = 1) : start_dim_(start_dim) {}

  Tensor forward(const Tensor& x) override { return x.flatten(start_dim_); }
  std::string extra_repr() const override { return "start_dim=" + std::to_string(start_dim_); }

 private:
  int64_t start_dim_;
};

}  // namespace lockstep::nn
