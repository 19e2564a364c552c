#include "lockstep/nn/functional.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/core/functional.h"
#include "lockstep/core/ops.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/sequential.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Sequential> net() {
  auto out = std::make_shared<Sequential>(std::make_shared<Linear>(1, 4), std::make_shared<Tanh>(),
                                          std::make_shared<Linear>(4, 1));
  out->to(DType::kF64);
  int k = 5;
  for (auto& [name, tensor] : out->named_parameters()) {
    assign(tensor, golden::wave(k++, tensor.shape()));
  }
  return out;
}

TEST(FunctionalCall, UsesTheTensorsItIsGivenAndPutsTheOldOnesBack) {
  const auto model = net();
  const Tensor x = golden::wave(1, {3, 1});
  const std::vector<double> before = model->forward(x).to_vector<double>();
  const Tensor bias = golden::leaf(2, {1});
  const Tensor y = functional_call(*model, {{"2.bias", bias}}, x);
  const double moved = bias.item() - model->named_parameters()[3].second.item();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(y.to_vector<double>()[i], before[i] + moved, 1e-12);
  }
  sum(y).backward();
  EXPECT_EQ(bias.grad().item(), 3);
  EXPECT_FALSE(model->named_parameters()[3].second.has_grad());
  EXPECT_EQ(model->forward(x).to_vector<double>(), before);
}

class Tied : public Module {
 public:
  Tied() {
    register_parameter("weight", weight_);
    again_ = weight_;
    register_parameter("again", again_);
    register_buffer("scale", scale_);
  }
  Tensor forward(const Tensor& x) override { return x * weight_ * again_ * scale_; }

 private:
  Tensor weight_ = Tensor::full({2}, 3);
  Tensor again_;
  Tensor scale_ = Tensor::full({2}, 10);
};

TEST(FunctionalCall, ReplacesTiedTensorsTogetherAndBuffersToo) {
  Tied module;
  const Tensor x = Tensor::ones({2});
  const Tensor w = Tensor::full({2}, 5);
  const Tensor y = functional_call(module, {{"weight", w}, {"scale", Tensor::full({2}, 2)}}, x);
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{50, 50}));
  EXPECT_EQ(module(x).to_vector<float>(), (std::vector<float>{90, 90}));
}

TEST(FunctionalCall, ListsWhatDoesNotFitAndRestoresAfterAnError) {
  const auto model = net();
  const Tensor x = golden::wave(1, {3, 1});
  const std::string error = error_of([&] {
    functional_call(*model, {{"3.bias", x}, {"0.bias", Tensor::ones({5}, {DType::kF64})}}, x);
  });
  EXPECT_THAT(error, HasSubstr("3.bias: the module has no such"));
  EXPECT_THAT(error, HasSubstr("0.bias: want shape (4) on cpu, got (5)"));
  const Tensor before = model->named_parameters()[3].second;
  error_of([&] {
    functional_call(*model, {{"2.bias", golden::wave(1, {1})}}, Tensor::ones({3, 2}));
  });
  EXPECT_TRUE(model->named_parameters()[3].second.is_same(before));
}

// Model-agnostic meta-learning (Finn et al., 2017): the loss on new points after two steps of
// gradient descent on others, as a function of the weights that the steps start from.
Tensor meta_loss(Module& model, const NamedTensors& start) {
  const auto target = [](const Tensor& x) { return sin(2 * x); };
  const Tensor support = golden::wave(1, {5, 1});
  const Tensor query = golden::wave(2, {7, 1});
  NamedTensors fast = start;
  for (int step = 0; step < 2; ++step) {
    Tensors values;
    for (const auto& [name, tensor] : fast) values.push_back(tensor);
    const Tensor loss = mse_loss(functional_call(model, fast, support), target(support));
    const Tensors slopes = grad({loss}, values, {}, {.create_graph = true});
    for (size_t i = 0; i < fast.size(); ++i) fast[i].second = fast[i].second - 0.1 * slopes[i];
  }
  return mse_loss(functional_call(model, fast, query), target(query));
}

TEST(FunctionalCall, TheOuterGradientOfMetaLearningEqualsANumericalOne) {
  const auto model = net();
  NamedTensors start = model->named_parameters();
  meta_loss(*model, start).backward();
  constexpr double kStep = 1e-5;
  for (auto& [name, tensor] : start) {
    double* values = tensor.data<double>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const double before = values[i];
      values[i] = before + kStep;
      const double above = meta_loss(*model, start).item();
      values[i] = before - kStep;
      const double below = meta_loss(*model, start).item();
      values[i] = before;
      const double numeric = (above - below) / (2 * kStep);
      EXPECT_NEAR(tensor.grad().to_vector<double>()[static_cast<size_t>(i)], numeric,
                  1e-7 * (1 + std::abs(numeric)))
          << name << " " << i;
    }
  }
}

TEST(GradientCheckpoint, OfModulesFindsTheirParameters) {
  const auto block = std::make_shared<Sequential>(
      std::make_shared<Linear>(6, 6), std::make_shared<GELU>(), std::make_shared<Dropout>(0.3));
  block->to(DType::kF64);
  const auto gradients = [&](bool checkpoint) {
    manual_seed(3);
    block->zero_grad();
    const Tensor x = golden::leaf(1, {4, 6});
    const auto f = [&](const Tensors& in) { return block->forward(in[0]); };
    Tensor y = x;
    for (int i = 0; i < 3; ++i) y = checkpoint ? gradient_checkpoint(f, {y}) : f({y});
    sum(y * golden::wave(9, {4, 6})).backward();
    std::vector<std::vector<double>> out = {x.grad().to_vector<double>()};
    for (const Tensor& parameter : block->parameters()) {
      out.push_back(parameter.grad().to_vector<double>());
    }
    return out;
  };
  const auto plain = gradients(false);
  const auto again = gradients(true);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_THAT(again[i], ::testing::Pointwise(::testing::DoubleNear(1e-12), plain[i]));
  }
}

}  // namespace
}  // namespace lockstep::nn
