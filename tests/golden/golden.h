#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/tensor.h"

// Numbers that PyTorch made: see make_golden.py and make_layers.py beside this file.
namespace lockstep::golden {

// The values under `name` in the .inc files; none, and a failed test, where there are none.
inline std::vector<double> values(const std::string& name) {
  static const auto all = [] {
    std::map<std::string, std::vector<double>> out;
    std::istringstream file(
#include "layers.inc"
#include "nn.inc"
    );
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string key;
      words >> key;
      for (std::string word; words >> word;) out[key].push_back(std::stod(word));
    }
    return out;
  }();
  const auto found = all.find(name);
  if (found == all.end()) {
    ADD_FAILURE() << "no golden numbers for " << name;
    return {};
  }
  return found->second;
}

// The input that make_golden.py calls wave(k, *shape), f64.
inline Tensor wave(int k, const Shape& shape) {
  Tensor out = Tensor::empty(shape, {DType::kF64});
  for (int64_t i = 0; i < out.numel(); ++i) {
    const auto x = static_cast<double>(i);
    out.data<double>()[i] = std::sin(0.7 * k + 0.37 * x) + 0.5 * std::cos(1.3 * x + k);
  }
  return out;
}

inline Tensor leaf(int k, const Shape& shape) { return wave(k, shape).set_requires_grad(); }

// Holds `got` (f64) to the values under `name`. Both are sums of a few dozen products of numbers
// near 1, in another order: 1e-12 leaves room for that and for nothing else.
inline void expect(const Tensor& got, const std::string& name) {
  const std::vector<double> wanted = values(name);
  const std::vector<double> found = got.to_vector<double>();
  ASSERT_EQ(found.size(), wanted.size()) << name;
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(found[i], wanted[i], 1e-12 * (1 + std::abs(wanted[i])))
        << name << ", element " << i;
  }
}

using NamedLeaves = std::vector<std::pair<std::string, Tensor>>;

// Holds y, and the gradients of the sum of y times a wave, to NAME.y and NAME.KEY.grad.
inline void expect_gradients(const std::string& name, const Tensor& y, const NamedLeaves& leaves) {
  expect(y, name + ".y");
  sum(y * wave(99, y.shape())).backward();
  for (const auto& [key, tensor] : leaves) expect(tensor.grad(), name + "." + key + ".grad");
}

// The same, and holds the gradients of the sum of these gradients times waves to NAME.KEY.grad2;
// once more through the recorded backward.
inline void expect_two_orders(const std::string& name, const Tensor& y, const NamedLeaves& leaves) {
  std::vector<Tensor> inputs;
  for (const auto& [key, tensor] : leaves) inputs.push_back(tensor);
  const std::vector<Tensor> first =
      grad({sum(y * wave(99, y.shape()))}, inputs, {}, {.create_graph = true});
  Tensor total = Tensor::scalar(0, {DType::kF64});
  for (size_t i = 0; i < first.size(); ++i) {
    expect(first[i], name + "." + leaves[i].first + ".grad");
    total = total + sum(first[i] * wave(98, first[i].shape()));
  }
  std::vector<Tensor> second(inputs.size());
  if (total.requires_grad()) second = grad({total}, inputs, {}, {.retain_graph = true}, true);
  for (size_t i = 0; i < second.size(); ++i) {
    const Tensor zero = Tensor::zeros(inputs[i].shape(), {DType::kF64});
    expect(second[i].defined() ? second[i] : zero, name + "." + leaves[i].first + ".grad2");
  }
  expect_gradients(name, y, leaves);
}

}  // namespace lockstep::golden
