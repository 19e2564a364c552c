#include "lockstep/nn/activation.h"

#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/core/ops/elementwise.h"

namespace lockstep::nn {
namespace {

template <class Activation>
void expect_golden(const std::string& name) {
  Activation activation;
  const Tensor x = golden::leaf(1, {3, 7});
  golden::expect_gradients(name, activation(3 * x), {{"x", x}});
}

TEST(Activation, HasPyTorchsValuesAndGradients) {
  expect_golden<ReLU>("relu");
  expect_golden<GELU>("gelu");
  expect_golden<Sigmoid>("sigmoid");
  expect_golden<Tanh>("tanh");
}

TEST(Activation, HasPyTorchsSecondGradients) {
  const auto expect = [](const std::string& name, Module&& activation) {
    const Tensor x = golden::leaf(1, {3, 7});
    golden::expect_two_orders(name, activation(3 * x), {{"x", x}});
  };
  expect("silu", SiLU());
  expect("softplus", Softplus());
  expect("softmax", Softmax(1));
  expect("log_softmax", LogSoftmax(0));
  EXPECT_EQ(Softmax(-1).to_string(), "Softmax(dim=-1)");
}

TEST(Activation, PassesItsOptionsOn) {
  const Tensor x = golden::leaf(1, {3, 7});
  EXPECT_EQ(LeakyReLU(0.2)(x).to_vector<double>(), leaky_relu(x, 0.2).to_vector<double>());
  EXPECT_EQ(LeakyReLU()(x).to_vector<double>(), leaky_relu(x, 0.01).to_vector<double>());
  EXPECT_EQ(GELU(Approximate::kTanh)(x).to_vector<double>(), gelu_tanh(x).to_vector<double>());
  EXPECT_NE(GELU()(x).to_vector<double>(), gelu_tanh(x).to_vector<double>());
  EXPECT_EQ(LeakyReLU(0.2).to_string(), "LeakyReLU(negative_slope=0.2)");
  EXPECT_EQ(GELU(Approximate::kTanh).to_string(), "GELU(approximate=tanh)");
}

}  // namespace
}  // namespace lockstep::nn
