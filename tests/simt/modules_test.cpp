// Every layer and loss of nn/ on an emulated CUDA device against the CPU: results, gradients and
// buffers, in training and eval mode, in each floating dtype and under autocast.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "ranks_on_devices.h"

namespace lockstep::nn {
namespace {

// Of each layer in each of four dtypes, and under autocast in each of two.
constexpr int kModuleSchedules = kSchedules / 4;
constexpr int kAutocastSchedules = kSchedules / 2;

struct Layer {
  std::string name;
  std::function<std::shared_ptr<Module>()> make;
  Shape x;
  // What is wanted of it; without, its forward().
  std::function<Tensor(Module&, const Tensor&)> call = {};
  DType x_dtype = DType::kF32;  // an integer one: places below 7
};

template <class M, class... Args>
std::function<std::shared_ptr<Module>()> make(Args... args) {
  return [=] { return std::make_shared<M>(args...); };
}

Tensor joined(const std::vector<Tensor>& parts) {
  std::vector<Tensor> lines;
  for (const Tensor& part : parts) lines.push_back(part.flatten());
  return cat(lines);
}

AttentionMasks some_masks(const Tensor& x) {
  const int64_t n = x.shape()[0], length = x.shape()[1];
  const Tensor lengths =
      Tensor::arange(n, {DType::kI64}).reshape({n, 1}) + static_cast<double>(length - n + 1);
  const Tensor padding = ge(Tensor::arange(length, {DType::kI64}), lengths);
  return {.attn_mask = wave({length, length}, 3, x.options()),
          .key_padding_mask = padding.to(x.device())};
}

std::vector<std::shared_ptr<TransformerEncoderLayer>> some_encoders() {
  std::vector<std::shared_ptr<TransformerEncoderLayer>> out;
  for (const bool first : {false, true}) {
    out.push_back(std::make_shared<TransformerEncoderLayer>(
        6, 2,
        TransformerEncoderLayerOptions{.dim_feedforward = 8,
                                       .dropout = 0.2,
                                       .activation = first ? gelu_tanh : relu,
                                       .norm_first = first}));
  }
  return out;
}

std::vector<Layer> layers() {
  const Shape image = {3, 4, 5, 7};
  std::vector<Layer> all = {
      {"Linear", make<Linear>(7, 5), {3, 2, 7}},
      {"Embedding", make<Embedding>(7, 5), {3, 4}, {}, DType::kI64},
      {"EmbeddingPadded",
       make<Embedding>(7, 5, EmbeddingOptions{.padding_idx = 2}),
       {3, 4},
       {},
       DType::kI64},
      {"Conv1d", make<Conv1d>(4, 5, 3), {2, 4, 9}},
      {"Conv2d", make<Conv2d>(4, 6, 3), image},
      {"ConvTranspose1d", make<ConvTranspose1d>(4, 3, 3), {2, 4, 5}},
      {"ConvTranspose2d", make<ConvTranspose2d>(4, 3, 3), image},
      {"BatchNorm1d", make<BatchNorm1d>(5), {7, 5}},
      {"BatchNorm1dOfLines", make<BatchNorm1d>(5), {3, 5, 7}},
      {"BatchNorm2d", make<BatchNorm2d>(4), image},
      {"BatchNorm3d", make<BatchNorm3d>(3), {2, 3, 3, 2, 5}},
      {"LayerNorm", make<LayerNorm>(Shape{5, 7}), image},
      {"GroupNorm", make<GroupNorm>(2, 4), image},
      {"InstanceNorm", make<InstanceNorm>(4, InstanceNormOptions{.affine = true}), image},
      {"MaxPool2d", make<MaxPool2d>(Size2{3, 2}, MaxPool2dOptions{.stride = 2, .padding = 1}),
       image},
      {"AvgPool2d",
       make<AvgPool2d>(Size2{3, 2},
                       AvgPool2dOptions{.stride = 2, .padding = 1, .count_include_pad = false}),
       image},
      {"AdaptiveAvgPool2d", make<AdaptiveAvgPool2d>(Size2{3, 4}), image},
      {"Upsample", make<Upsample>(Size2{2, 3}), image},
      {"UpsampleBilinear",
       make<Upsample>(Size2{2, 3}, UpsampleOptions{.mode = UpsampleMode::kBilinear}), image},
      {"ReLU", make<ReLU>(), {3, 7}},
      {"LeakyReLU", make<LeakyReLU>(0.2), {3, 7}},
      {"GELU", make<GELU>(), {3, 7}},
      {"Sigmoid", make<Sigmoid>(), {3, 7}},
      {"Tanh", make<Tanh>(), {3, 7}},
      {"SiLU", make<SiLU>(), {3, 7}},
      {"Softplus", make<Softplus>(), {3, 7}},
      {"Softmax", make<Softmax>(1), {3, 7, 2}},
      {"LogSoftmax", make<LogSoftmax>(-1), {3, 7}},
      {"Flatten", make<Flatten>(), image},
      {"Dropout", make<Dropout>(0.3), {5, 77}},
      {"LSTM",
       make<LSTM>(5, 3, RNNOptions{.num_layers = 2, .dropout = 0.3, .bidirectional = true}),
       {2, 4, 5}},
      {"GRU",
       make<GRU>(5, 3, RNNOptions{.num_layers = 2, .dropout = 0.3, .bidirectional = true}),
       {2, 4, 5}},
      {"LSTMWithState",
       make<LSTM>(5, 3),
       {2, 4, 5},
       [](Module& layer, const Tensor& x) {
         const LSTMState state = {wave({1, 2, 3}, 7, x.options()), wave({1, 2, 3}, 8, x.options())};
         const LSTMResult got = dynamic_cast<LSTM&>(layer).forward(x, state);
         return joined({got.y, got.state.h, got.state.c});
       }},
      {"GRUWithState",
       make<GRU>(5, 3),
       {2, 4, 5},
       [](Module& layer, const Tensor& x) {
         const GRUResult got =
             dynamic_cast<GRU&>(layer).forward(x, wave({1, 2, 3}, 7, x.options()));
         return joined({got.y, got.h});
       }},
      {"MultiheadAttention",
       make<MultiheadAttention>(6, 2, MultiheadAttentionOptions{.dropout = 0.2}),
       {3, 5, 6}},
      {"MultiheadAttentionMasked",
       make<MultiheadAttention>(6, 3),
       {3, 5, 6},
       [](Module& layer, const Tensor& x) {
         return dynamic_cast<MultiheadAttention&>(layer).forward(x, some_masks(x));
       }},
      {"MultiheadAttentionCausal",
       make<MultiheadAttention>(6, 1, MultiheadAttentionOptions{.bias = false}),
       {3, 5, 6},
       [](Module& layer, const Tensor& x) {
         return dynamic_cast<MultiheadAttention&>(layer).forward(x,
                                                                 AttentionMasks{.is_causal = true});
       }},
      {"TransformerEncoder",
       [] {
         return std::make_shared<TransformerEncoder>(some_encoders(),
                                                     std::make_shared<LayerNorm>(Shape{6}));
       },
       {2, 5, 6}},
  };
  return all;
}

using Named = std::vector<std::pair<std::string, Tensor>>;

// The number of a name, so that each parameter has values of its own.
int salt_of(const std::string& name) {
  int out = 0;
  for (const char c : name) out = (out * 31 + c) % 1009;
  return out;
}

struct Mode {
  DType dtype = DType::kF32;
  bool training = true;
  std::optional<DType> autocast = {};
};

// Two steps on `device`, after which dropout has drawn twice and statistics have run on: the second
// result, and all gradients and buffers.
Named run(const Layer& layer, const Mode& mode, Device device) {
  const std::shared_ptr<Module> module = layer.make();
  for (const auto& [name, parameter] : module->named_parameters()) {
    const NoGrad no_grad;
    Tensor(parameter).copy_(wave(parameter.shape(), salt_of(name)) * 0.6 + 0.1);
  }
  module->to(mode.dtype);
  module->to(device);
  module->train(mode.training);
  Tensor x;
  if (is_floating(layer.x_dtype)) {
    x = wave(layer.x, 2, {mode.dtype, device}).set_requires_grad();
  } else {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < numel(layer.x); ++i) places.push_back(i * i % 7);
    x = Tensor::from(std::span<const int64_t>(places), layer.x).to(device);
  }
  manual_seed(5);
  Named out;
  for (int step = 0; step < 2; ++step) {
    std::optional<Autocast> autocast;
    if (mode.autocast) autocast.emplace(*mode.autocast);
    const Tensor y = layer.call ? layer.call(*module, x) : (*module)(x);
    EXPECT_EQ(y.device(), device) << layer.name;
    const Tensor loss = loss_of(mode.dtype == DType::kF64 ? y : y.to(DType::kF32));
    autocast.reset();
    if (loss.requires_grad()) loss.backward();
    out = {{"y", y}};
  }
  if (x.has_grad()) out.emplace_back("x.grad", x.grad());
  for (const auto& [name, parameter] : module->named_parameters()) {
    out.emplace_back(name + ".grad", parameter.grad());
  }
  for (const auto& [name, buffer] : module->named_buffers()) out.emplace_back(name, buffer);
  return out;
}

double tolerance_of(DType dtype) {
  return dtype == DType::kF64   ? 1e-12
         : dtype == DType::kF32 ? 1e-5
         : dtype == DType::kF16 ? 0x1p-8
                                : 0x1p-5;
}

// Errors are held to the largest number of a tensor: gradients are sums.
void expect_as_on_cpu(const std::string& label, DType dtype, int schedules,
                      const std::function<Named(Device)>& call) {
  const double tolerance = tolerance_of(dtype);
  const Named want = call(kCpu);
  Named first;
  for (int seed = 1; seed <= schedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed) + (static_cast<uint64_t>(dtype) << 8));
    const Named got = call(kFirst);
    if (seed == 1) first = got;
    ASSERT_EQ(got.size(), want.size()) << label;
    for (size_t k = 0; k < want.size(); ++k) {
      const std::string what = label + ", " + want[k].first + ", schedule " + std::to_string(seed);
      ASSERT_EQ(got[k].second.dtype(), want[k].second.dtype()) << what;
      ASSERT_EQ(got[k].second.shape(), want[k].second.shape()) << what;
      Numbers g, w, f;
      append(g, got[k].second);
      append(w, want[k].second);
      append(f, first[k].second);
      EXPECT_EQ(g, f) << what;  // no schedule changes a bit
      double largest = 1;
      for (const double value : w) largest = std::max(largest, std::abs(value));
      for (size_t i = 0; i < w.size(); ++i) {
        ASSERT_NEAR(g[i], w[i], tolerance * largest) << what << ", element " << i;
      }
    }
  }
  ASSERT_EQ(simt::take_report(), "") << label;
}

class CudaModules : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaModules,
                         ::testing::Values(DType::kF64, DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& one) { return std::string(name(one.param)); });

TEST_P(CudaModules, GiveWhatTheyGiveOnTheCpu) {
  for (const Layer& layer : layers()) {
    for (const bool training : {true, false}) {
      expect_as_on_cpu(layer.name + (training ? " in training" : " in eval mode"), GetParam(),
                       kSchedules, [&](Device device) {
                         return run(layer, {.dtype = GetParam(), .training = training}, device);
                       });
    }
  }
}

TEST(CudaAutocast, GivesWhatItGivesOnTheCpu) {
  for (const Layer& layer : layers()) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      expect_as_on_cpu(layer.name + " under autocast", dtype, kAutocastSchedules,
                       [&](Device device) { return run(layer, {.autocast = dtype}, device); });
    }
  }
}

struct Loss {
  std::string name;
  std::function<Tensor(const Tensor& x, const Tensor& target, Reduction reduction)> call;
  std::function<Tensor(Device)> target;
};

// Of x (5, 4), which lies between 0 and 1.
std::vector<Loss> losses() {
  const auto classes = [](Device device) {
    return Tensor::from<int64_t>({2, 0, -100, 3, 1}, {5}).to(device);
  };
  const auto between = [](Device device) {
    return (wave({5, 4}, 9, {DType::kF32, device}) * 0.4 + 0.5).detach();
  };
  const auto weight = [](const Tensor& x) { return wave({4}, 4, x.options()) + 1.5; };
  return {
      {"CrossEntropyLoss",
       [=](const Tensor& x, const Tensor& t, Reduction r) {
         return CrossEntropyLoss{.reduction = r, .label_smoothing = 0.1, .weight = weight(x)}(x, t);
       },
       classes},
      {"CrossEntropyLossOfProbabilities",
       [](const Tensor& x, const Tensor& t, Reduction r) {
         return CrossEntropyLoss{.reduction = r}(x, softmax(t.to(DType::kF64), 1).to(x.dtype()));
       },
       between},
      {"NLLLoss",
       [=](const Tensor& x, const Tensor& t, Reduction r) {
         return NLLLoss{.reduction = r, .weight = weight(x)}(log_softmax(x, 1), t);
       },
       classes},
      {"MSELoss",
       [](const Tensor& x, const Tensor& t, Reduction r) {
         return MSELoss{.reduction = r}(x, t.to(x.dtype()));
       },
       between},
      {"L1Loss",
       [](const Tensor& x, const Tensor& t, Reduction r) {
         return L1Loss{.reduction = r}(x, t.to(x.dtype()));
       },
       between},
      {"SmoothL1Loss",
       [](const Tensor& x, const Tensor& t, Reduction r) {
         return SmoothL1Loss{.reduction = r, .beta = 0.3}(x, t.to(x.dtype()));
       },
       between},
      {"HuberLoss",
       [](const Tensor& x, const Tensor& t, Reduction r) {
         return HuberLoss{.reduction = r, .delta = 0.3}(x, t.to(x.dtype()));
       },
       between},
      {"BCELoss",
       [=](const Tensor& x, const Tensor& t, Reduction r) {
         return BCELoss{.reduction = r, .weight = weight(x)}(x, t.to(x.dtype()));
       },
       between},
      {"BCEWithLogitsLoss",
       [=](const Tensor& x, const Tensor& t, Reduction r) {
         return BCEWithLogitsLoss{.reduction = r, .pos_weight = weight(x)}(x, t.to(x.dtype()));
       },
       between},
      {"KLDivLoss",
       [](const Tensor& x, const Tensor& t, Reduction r) {
         return KLDivLoss{.reduction = r}(log_softmax(x, 1),
                                          softmax(t.to(DType::kF64), 1).to(x.dtype()));
       },
       between},
  };
}

TEST_P(CudaModules, LossesAreThoseOfTheCpu) {
  for (const Loss& loss : losses()) {
    for (const Reduction reduction : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
      expect_as_on_cpu(loss.name, GetParam(), kModuleSchedules, [&](Device device) {
        Tensor x = wave({5, 4}, 2, {GetParam(), device}) * 0.4 + 0.5;
        x = x.detach().set_requires_grad();
        const Tensor y = loss.call(x, loss.target(device), reduction);
        EXPECT_EQ(y.device(), device) << loss.name;
        sum(y * (wave(y.shape(), 6, y.options()) + 1.5)).backward();
        return Named{{"y", y}, {"x.grad", x.grad()}};
      });
    }
  }
}

}  // namespace
}  // namespace lockstep::nn
