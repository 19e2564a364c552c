#include "lockstep/nn/rnn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/core/gradcheck.h"
#include "lockstep/core/ops.h"

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Fills the parameters with waves 5, 6, … and lists them.
golden::NamedLeaves fill(Module& module) {
  module.to(DType::kF64);
  golden::NamedLeaves out;
  int k = 5;
  for (auto& [name, tensor] : module.named_parameters()) {
    assign(tensor, golden::wave(k++, tensor.shape()));
    out.emplace_back(name, tensor);
  }
  return out;
}

Tensor joined(const std::vector<Tensor>& parts) {
  std::vector<Tensor> flat;
  for (const Tensor& part : parts) flat.push_back(reshape(part, {-1}));
  return cat(flat, 0);
}

struct Case {
  const char* name;
  RNNOptions options;
};
const Case kCases[] = {{"plain", {}},
                       {"deep", {.num_layers = 2, .bidirectional = true}},
                       {"unbiased", {.bias = false}}};

int64_t places(const RNNOptions& options) {
  return options.num_layers * (options.bidirectional ? 2 : 1);
}

TEST(LSTM, HasPyTorchsValuesAndGradients) {
  for (const auto& [name, options] : kCases) {
    LSTM lstm(3, 4, options);
    golden::NamedLeaves leaves = fill(lstm);
    const Tensor x = golden::leaf(1, {2, 5, 3});
    const Tensor h = golden::leaf(2, {places(options), 2, 4});
    const Tensor c = golden::leaf(3, {places(options), 2, 4});
    for (const auto& [key, tensor] : golden::NamedLeaves{{"x", x}, {"h", h}, {"c", c}}) {
      leaves.emplace_back(key, tensor);
    }
    const LSTMResult result = lstm.forward(x, {h, c});
    const auto expect = options.num_layers == 1 && options.bias ? golden::expect_two_orders
                                                                : golden::expect_gradients;
    expect(std::string("lstm.") + name, joined({result.y, result.state.h, result.state.c}), leaves);
  }
}

TEST(GRU, HasPyTorchsValuesAndGradients) {
  for (const auto& [name, options] : kCases) {
    GRU gru(3, 4, options);
    golden::NamedLeaves leaves = fill(gru);
    const Tensor x = golden::leaf(1, {2, 5, 3});
    const Tensor h = golden::leaf(2, {places(options), 2, 4});
    leaves.emplace_back("x", x);
    leaves.emplace_back("h", h);
    const GRUResult result = gru.forward(x, h);
    const auto expect = options.num_layers == 1 && options.bias ? golden::expect_two_orders
                                                                : golden::expect_gradients;
    expect(std::string("gru.") + name, joined({result.y, result.h}), leaves);
  }
}

TEST(LSTM, GradientsEqualDifferencesToTheSecondOrder) {
  const auto lstm = [](const Tensors& x) { return lstm_sequence(x[0], x[1], x[2], x[3]); };
  EXPECT_EQ(gradcheck(lstm, {golden::leaf(1, {3, 2, 8}), golden::leaf(2, {2, 2}),
                             golden::leaf(3, {2, 2}), golden::leaf(4, {8, 2})}),
            "");
  const auto gru = [](const Tensors& x) { return gru_sequence(x[0], x[1], x[2], x[3]); };
  EXPECT_EQ(gradcheck(gru, {golden::leaf(1, {3, 2, 6}), golden::leaf(2, {2, 2}),
                            golden::leaf(3, {6, 2}), golden::leaf(4, {6})}),
            "");
}

TEST(LSTM, GoesOnFromItsState) {
  LSTM lstm(3, 4, {.num_layers = 2});
  const Tensor x = randn({2, 7, 3});
  const LSTMResult whole = lstm.forward(x, LSTMState{});
  const LSTMResult first = lstm.forward(narrow(x, 1, 0, 3), LSTMState{});
  const LSTMResult second = lstm.forward(narrow(x, 1, 3, 4), first.state);
  EXPECT_LT(max(abs(second.y - narrow(whole.y, 1, 3, 4))).item(), 1e-6);
  EXPECT_LT(max(abs(second.state.c - whole.state.c)).item(), 1e-6);
  GRU gru(3, 4, {.num_layers = 2});
  const Tensor h = gru.forward(narrow(x, 1, 0, 3), Tensor()).h;
  EXPECT_LT(max(abs(gru.forward(narrow(x, 1, 3, 4), h).y - narrow(gru(x), 1, 3, 4))).item(), 1e-6);
}

TEST(LSTM, NamesAreThoseOfPyTorch) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : GRU(3, 4, {.bidirectional = true}).named_parameters()) {
    names.push_back(name);
  }
  EXPECT_THAT(names, ElementsAre("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0",
                                 "weight_ih_l0_reverse", "weight_hh_l0_reverse",
                                 "bias_ih_l0_reverse", "bias_hh_l0_reverse"));
  EXPECT_EQ(LSTM(3, 4).to_string(), "LSTM(3, 4, num_layers=1, bidirectional=false)");
}

TEST(LSTM, DropsBetweenLayersInTrainingAlone) {
  LSTM lstm(3, 4, {.num_layers = 2, .dropout = 0.5});
  const Tensor x = randn({2, 7, 3});
  EXPECT_GT(max(abs(lstm(x) - lstm(x))).item(), 0);
  lstm.eval();
  EXPECT_EQ(max(abs(lstm(x) - lstm(x))).item(), 0);
}

TEST(LSTM, RefusesWhatHasNoMeaning) {
  EXPECT_THAT(error_of([] { LSTM(3, 0); }), HasSubstr("got 3, 0, 1"));
  LSTM lstm(3, 4);
  EXPECT_THAT(error_of([&] { lstm(Tensor::ones({2, 5, 4})); }), HasSubstr("[LSTM]"));
  EXPECT_THAT(error_of([&] {
                lstm.forward(Tensor::ones({2, 5, 3}), {Tensor::ones({2, 2, 4})});
              }),
              HasSubstr("a state h (1, 2, 4), got (2, 2, 4)"));
  EXPECT_THAT(error_of([&] { GRU(3, 4)(Tensor::ones({2, 0, 3})); }), HasSubstr("(2, 0, 3)"));
}

}  // namespace
}  // namespace lockstep::nn
