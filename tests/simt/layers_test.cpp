// Layers, losses and optimisers on an emulated CUDA device against the CPU, under random schedules.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"
#include "lockstep/nn/conv.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/optim.h"
#include "schedules.h"
#include "simt/simt.h"

namespace lockstep::nn {
namespace {

constexpr Device kDevice = {DeviceType::kCuda, 0};

using Numbers = std::vector<double>;

void append(Numbers& out, const Tensor& x) {
  for (double value : to(x.detach().to(kCpu), DType::kF64).to_vector<double>())
    out.push_back(value);
}

// Numbers near 0 that depend on their place.
Tensor ramp(const Shape& shape, Device device, double step = 0.037) {
  const Tensor numbers =
      Tensor::arange(0.0, static_cast<double>(numel(shape)), 1.0, {DType::kF32, device});
  return sin(numbers.reshape(shape) * step);
}

// A layer on `device` whose parameters are the same everywhere.
template <class Layer>
void settle(Layer& layer, Device device) {
  double step = 0.21;
  for (Tensor* parameter : {&layer.weight, &layer.bias}) {
    if (!parameter->defined()) continue;
    *parameter = (ramp(parameter->shape(), kCpu, step) * 0.4).detach().to(device);
    parameter->set_requires_grad();
    step += 0.12;
  }
}

// Holds run() on the device to what it gives on the CPU.
void expect_same(const std::function<Numbers(Device)>& run, double tolerance = 2e-5) {
  const Numbers want = run(kCpu);
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    const Numbers got = run(kDevice);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i])))
          << "number " << i << ", schedule " << seed;
    }
  }
  ASSERT_EQ(simt::take_report(), "");
}

// y and the gradients of x, weight and bias of one layer.
template <class Layer>
void expect_layer(const std::function<std::shared_ptr<Layer>()>& make, const Shape& x_shape) {
  expect_same([&](Device device) {
    const std::shared_ptr<Layer> layer = make();
    settle(*layer, device);
    Tensor x = ramp(x_shape, device);
    x.set_requires_grad();
    const Tensor y = (*layer)(x);
    EXPECT_EQ(y.device(), device);
    sum(y * y).backward();
    Numbers out;
    append(out, y);
    append(out, x.grad());
    append(out, layer->weight.grad());
    if (layer->bias.defined()) append(out, layer->bias.grad());
    return out;
  });
}

TEST(CudaLayers, LinearIsTheCpus) {
  expect_layer<Linear>([] { return std::make_shared<Linear>(7, 5); }, {3, 7});
  expect_layer<Linear>([] { return std::make_shared<Linear>(7, 5, false); }, {2, 3, 7});
  expect_layer<Linear>([] { return std::make_shared<Linear>(7, 5); }, {0, 7});
}

// Of which a library may take 16 bytes at a time.
TEST(CudaLayers, ABiasMayBeginAnywhere) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kF64}) {
    expect_same(
        [dtype](Device device) {
          const auto number = [&](const Shape& shape, double step) {
            return ramp(shape, kCpu, step).to(dtype).to(device);
          };
          Numbers out;
          for (int64_t first = 0; first < 4; ++first) {
            append(out, linear(number({3, 8}, 0.1), number({16, 8}, 0.2),
                               narrow(number({20}, 0.3), 0, first, 16)));
            append(out, linear_gelu(number({3, 8}, 0.1), number({16, 8}, 0.2),
                                    narrow(number({20}, 0.3), 0, first, 16)));
          }
          return out;
        },
        dtype == DType::kF16 ? 2e-3 : 2e-5);
  }
}

TEST(CudaLayers, ConvolutionsAreTheCpus) {
  expect_layer<Conv2d>([] { return std::make_shared<Conv2d>(3, 5, 3); }, {2, 3, 6, 7});
  expect_layer<Conv2d>(
      [] {
        return std::make_shared<Conv2d>(
            4, 6, 3,
            Conv2dModuleOptions{
                .stride = 2, .padding = 1, .dilation = 2, .groups = 2, .bias = false});
      },
      {2, 4, 9, 8});
  expect_layer<Conv1d>([] { return std::make_shared<Conv1d>(3, 5, 3); }, {2, 3, 11});
  expect_layer<ConvTranspose2d>(
      [] {
        return std::make_shared<ConvTranspose2d>(
            4, 6, 3,
            ConvTranspose2dModuleOptions{
                .stride = 2, .padding = 1, .output_padding = 1, .groups = 2});
      },
      {2, 4, 5, 4});
}

TEST(CudaLayers, ProductsBroadcastTheirBatchesAsOnTheCpu) {
  expect_same([](Device device) {
    Tensor a = ramp({2, 1, 3, 4}, device), b = ramp({3, 4, 5}, device, 0.11);
    a.set_requires_grad();
    b.set_requires_grad();
    const Tensor y = matmul(a, b);  // (2, 3, 3, 5)
    sum(y * matmul(ramp({7}, device), ramp({7}, device, 0.2))).backward();
    Numbers out;
    for (const Tensor& x : {y, a.grad(), b.grad()}) append(out, x);
    return out;
  });
}

// In f64: sums of squares cancel, and in f32 a number's rounding says nothing of its own size.
TEST(CudaLayers, SecondDerivativesAreTheCpus) {
  expect_same(
      [](Device device) {
        const auto wide = [device](const Shape& shape, double step) {
          // On the CPU: a device's sin may differ in the last place.
          return ramp(shape, kCpu, step).to(DType::kF64).to(device).detach();
        };
        Tensor x = wide({2, 3, 5, 5}, 0.19), weight = wide({4, 3, 3, 3}, 0.3);
        Tensor head = wide({4 * 9, 3}, 0.7);
        for (Tensor* t : {&x, &weight, &head}) t->set_requires_grad();
        const Tensor y = matmul(tanh(conv2d(x, weight)).reshape({2, 4 * 9}), head);
        const Tensors first = grad({sum(y * y)}, {x, weight, head}, {}, {.create_graph = true});
        Tensor total = sum(first[0] * first[0]);
        total = total + sum(first[1] * first[1]) + sum(first[2] * first[2]);
        total.backward();
        Numbers out;
        for (const Tensor& t : {x.grad(), weight.grad(), head.grad()}) append(out, t);
        return out;
      },
      1e-12);
}

// 16-bit convolutions go to cuDNN as they are, where the CPU computes copies in f32.
TEST(CudaLayers, ConvolutionsOf16BitsAreTheCpus) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    expect_same(
        [dtype](Device device) {
          Tensor x = to(ramp({2, 3, 6, 7}, kCpu), dtype).to(device).detach();
          Tensor weight = to(ramp({5, 3, 3, 3}, kCpu, 0.3) * 0.3, dtype).to(device).detach();
          Tensor bias = to(ramp({5}, kCpu, 0.9), dtype).to(device).detach();
          Tensor up = to(ramp({5, 2, 2, 2}, kCpu, 0.8), dtype).to(device).detach();
          for (Tensor* t : {&x, &weight, &bias, &up}) t->set_requires_grad();
          const Tensor y = conv_transpose2d(conv2d(x, weight, bias), up);
          EXPECT_EQ(y.dtype(), dtype);
          sum(to(y, DType::kF32)).backward();
          Numbers out;
          for (const Tensor& t : {y, x.grad(), weight.grad(), bias.grad(), up.grad()}) {
            append(out, t);
          }
          return out;
        },
        dtype == DType::kBF16 ? 0x1p-5 : 0x1p-8);
  }
}

// Losses and parameters of four steps of a network with momentum.
TEST(CudaLayers, TrainingIsTheCpus) {
  expect_same([](Device device) {
    Conv2d features(2, 4, 3);
    Linear hidden(4 * 4 * 5, 11), head(11, 3);
    settle(features, device);
    settle(hidden, device);
    settle(head, device);
    std::vector<Tensor> parameters = {features.weight, features.bias, hidden.weight,
                                      hidden.bias,     head.weight,   head.bias};
    SGD optimizer(named(parameters), {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01});
    const Tensor x = ramp({5, 2, 6, 7}, device);
    const Tensor targets = Tensor::from<int64_t>({2, 0, 1, 1, 2}, {5}).to(device);
    Numbers out;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      const Tensor deep = hidden(relu(features(x)).reshape({5, 4 * 4 * 5}));
      const Tensor logits = head(gelu(deep));
      const Tensor loss = cross_entropy(logits, targets);
      loss.backward();
      optimizer.step();
      append(out, loss);
    }
    for (const Tensor& parameter : parameters) append(out, parameter);
    return out;
  });
}

// Gradients of several dtypes, on several devices in turn. The squares of all sum up exactly.
TEST(CudaGradients, AreUnscaledAndClippedWhereTheyAre) {
  const auto gradients = [](const std::vector<Device>& devices) {
    NamedTensors parameters;
    std::vector<Tensor> list;
    for (size_t i = 0; i < 30; ++i) {
      const DType dtypes[] = {DType::kF32, DType::kF16, DType::kF64, DType::kBF16};
      Tensor p =
          to(Tensor::arange(static_cast<int64_t>(3 * i)).reshape({static_cast<int64_t>(i), 3}) - 7,
             dtypes[i % 4])
              .to(devices[i / 2 % devices.size()]);
      p.set_requires_grad();
      p.set_grad(p.detach() * 2);
      parameters.emplace_back("p" + std::to_string(i), p);
      list.push_back(p);
    }
    Numbers out;
    const auto note = [&] {
      for (const Tensor& p : list) append(out, p.grad());
    };
    std::vector<std::unique_ptr<SGD>> optimizers;  // a group has one device
    GradScaler scaler({.init_scale = 4});
    for (const auto& parameter : parameters) {
      optimizers.push_back(std::make_unique<SGD>(NamedTensors{parameter}, SGDOptions{}));
      scaler.unscale(*optimizers.back());
    }
    note();
    out.push_back(clip_grad_norm_(list, 2));
    note();
    clip_grad_value_(list, 0.2);
    note();
    return out;
  };
  const Numbers want = gradients({kCpu});
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    const Device second = {DeviceType::kCuda, simt::device_count() > 1 ? 1 : 0};
    EXPECT_EQ(gradients({kDevice, kCpu, second}), want);
  }
  EXPECT_EQ(simt::take_report(), "");
}

// One launch, and one that adds up; what is there twice is not changed by two at once.
TEST(CudaGradientsLaunches, AreFewForMany) {
  std::vector<Tensor> list;
  NamedTensors parameters;
  for (int i = 0; i < 20; ++i) {
    Tensor p = ramp({i + 1}, kDevice).set_requires_grad();
    p.set_grad(ramp({i + 1}, kDevice));
    list.push_back(p);
    parameters.emplace_back("p" + std::to_string(i), p);
  }
  SGD optimizer(parameters, {});
  GradScaler scaler;
  const auto launches = [](auto call) {
    const auto before = simt::launches();
    call();
    return simt::launches() - before;
  };
  EXPECT_EQ(launches([&] { scaler.unscale(optimizer); }), 2);
  EXPECT_EQ(launches([&] { clip_grad_norm_(list, 0); }), 3);
  EXPECT_EQ(launches([&] { clip_grad_value_(list, 1); }), 1);
  EXPECT_EQ(launches([&] { clip_grad_value_({list[0], list[1], list[0]}, 1); }), 2);
}

}  // namespace
}  // namespace lockstep::nn
