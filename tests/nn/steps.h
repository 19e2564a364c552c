#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "layers.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {

// Twenty steps, as optimise() in make_golden.py takes them: gradients that depend on the parameter,
// and none for the second one in every third step.
inline void expect_golden_steps(
    const std::string& name, const std::function<std::unique_ptr<Optimizer>(NamedTensors)>& make) {
  Tensor a = golden::leaf(1, {7});
  Tensor b = golden::leaf(2, {2, 3});
  const auto optimizer = make({{"a", a}, {"b", b}});
  for (int step = 0; step < 20; ++step) {
    a.set_grad(golden::wave(30 + step, {7}) + 0.1 * a.detach());
    b.set_grad(golden::wave(60 + step, {2, 3}) + 0.1 * b.detach());
    if (step % 3 == 1) b.clear_grad();
    optimizer->step();
    if (step == 0 || step == 1 || step == 19) {
      const std::string prefix = name + "." + std::to_string(step + 1);
      golden::expect(a, prefix + ".a");
      golden::expect(b, prefix + ".b");
    }
  }
  for (const auto& [key, tensor] : optimizer->named_state()) {
    golden::expect(tensor.to(DType::kF64), name + "." + key);
  }
}

}  // namespace lockstep::nn
