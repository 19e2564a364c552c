// Every op of tests/core/op_table.h on an emulated CUDA device against the CPU: values, gradients,
// dtypes, strides, scalars, empty tensors and special numbers, under random schedules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "../core/op_table_checks.h"
#include "schedules.h"
#include "simt/simt.h"

namespace lockstep::op_table {
namespace {

constexpr Device kDevice = {DeviceType::kCuda, 0};

class CudaOpTable : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaOpTable,
                         ::testing::Values(DType::kF64, DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& one) { return std::string(name(one.param)); });

// Leaves of `dtype` on `device`.
Tensors on(Device device, DType dtype, const Tensors& inputs) {
  Tensors out;
  for (const Tensor& x : inputs) {
    out.push_back(x.detach().to(dtype).to(device).clone().set_requires_grad());
  }
  return out;
}

// What a case gives: its result, the gradients of its inputs, and those of these.
std::vector<Tensor> results(const Case& c, const Tensors& inputs, bool second) {
  const Tensor y = c.function(inputs);
  EXPECT_EQ(y.device(), inputs[0].device()) << c.name;
  std::vector<Tensor> out = {y};
  if (!y.requires_grad()) return out;
  const Tensors first = gradients(y, inputs, second);
  out.insert(out.end(), first.begin(), first.end());
  if (!second) return out;
  Tensor total = Tensor::scalar(0, inputs[0].options());
  for (const Tensor& g : first) {
    if (g.defined()) total = total + sum(g * weights_like(g).to(g.dtype()));
  }
  if (!total.requires_grad()) return out;
  const Tensors again = grad({total}, inputs, {}, {}, true);
  out.insert(out.end(), again.begin(), again.end());
  return out;
}

// Gradients are sums: what is lost depends on the largest summand.
double largest(const Tensor& x) {
  double out = 1;
  for (const double value : numbers(x)) out = std::max(out, std::abs(value));
  return out;
}

// Holds what a case gives on the device for the leaves that make() makes there to the CPU's. No
// schedule changes a bit.
void expect_as_on_cpu(const Case& c, const std::function<Tensors(Device)>& make, int schedules = 1,
                      bool second = false) {
  const Tensors inputs = make(kCpu);
  const DType dtype = inputs[0].dtype();
  const std::vector<Tensor> want = results(c, inputs, second);
  std::vector<Tensor> first_found;
  for (int seed = 1; seed <= schedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    const std::vector<Tensor> got = results(c, make(kDevice), second);
    if (seed == 1) first_found = got;
    ASSERT_EQ(got.size(), want.size()) << c.name;
    for (size_t i = 0; i < want.size(); ++i) {
      const std::string what = c.name + " in " + std::string(name(dtype)) + ", result " +
                               std::to_string(i) + ", schedule " + std::to_string(seed);
      ASSERT_EQ(got[i].defined(), want[i].defined()) << what;
      if (!want[i].defined()) continue;
      ASSERT_EQ(got[i].dtype(), want[i].dtype()) << what;
      ASSERT_EQ(got[i].shape(), want[i].shape()) << what;
      double tolerance = 0;
      if (is_floating(want[i].dtype())) {
        tolerance = dtype == DType::kF64 ? 1e-12 : 4 * c.loose * epsilon(dtype);
        if (i > 0) tolerance *= 4 * largest(want[i]);
      }
      expect_near(got[i], numbers(want[i]), tolerance, what);
      expect_near(got[i], numbers(first_found[i]), 0, what + ", against the first");
    }
  }
  ASSERT_EQ(simt::take_report(), "") << c.name;
}

TEST_P(CudaOpTable, ValuesAndGradientsAreTheCpus) {
  const bool second = GetParam() == DType::kF64;
  for (const Case& c : cases()) {
    expect_as_on_cpu(
        c, [&](Device device) { return on(device, GetParam(), c.inputs); }, kSchedules, second);
  }
}

TEST_P(CudaOpTable, StridesChangeNothing) {
  for (const Case& c : cases()) {
    for (const size_t kind : {0, 1}) {
      expect_as_on_cpu(c, [&](Device device) {
        return in_other_memory(on(device, GetParam(), c.inputs))[kind];
      });
    }
  }
}

TEST_P(CudaOpTable, EmptyTensorsGiveWhatTheyGiveOnTheCpu) {
  for (const Case& c : cases()) {
    std::vector<Shape> shapes = c.empty;
    if (c.kind == Kind::kElementwise) {
      shapes = std::vector<Shape>(c.inputs.size(), Shape{3, 0});
    }
    if (shapes.empty()) continue;
    Tensors inputs;
    for (const Shape& shape : shapes) inputs.push_back(sample(shape));
    expect_as_on_cpu(c, [&](Device device) { return on(device, GetParam(), inputs); });
  }
}

TEST_P(CudaOpTable, ElementwiseOpsTakeScalars) {
  for (const Case& c : cases()) {
    if (c.kind != Kind::kElementwise || c.name.ends_with("_broadcast")) continue;
    Tensors scalars;
    for (const Tensor& x : c.inputs) scalars.push_back(x.detach().flatten().select(0, 0));
    expect_as_on_cpu(c, [&](Device device) { return on(device, GetParam(), scalars); });
  }
}

// Of 16 bits numbers beyond the range are infinite before they come to the op.
TEST_P(CudaOpTable, SpecialNumbersGiveWhatTheyGiveOnTheCpu) {
  const Tensor one = Tensor::from(std::span<const double>(kSpecial), {std::size(kSpecial)});
  const Tensor pair =
      Tensor::from(std::span<const double>(kSpecialPairs), {std::size(kSpecialPairs)});
  const double step = GetParam() == DType::kF64 ? 1e-14 : 4 * epsilon(GetParam());
  for (const Case& c : cases()) {
    if (c.kind != Kind::kElementwise || c.name.ends_with("_broadcast")) continue;
    const Tensors inputs = c.inputs.size() == 2 ? Tensors{unsqueeze(pair, 1), pair} : Tensors{one};
    const std::vector<double> want = numbers(c.function(on(kCpu, GetParam(), inputs)));
    const std::vector<double> got = numbers(c.function(on(kDevice, GetParam(), inputs)));
    ASSERT_EQ(got.size(), want.size()) << c.name;
    for (size_t i = 0; i < want.size(); ++i) {
      const bool same = std::isfinite(want[i])
                            ? std::abs(got[i] - want[i]) <= step * std::abs(want[i]) + 1e-37
                            : near(got[i], want[i], 0);
      EXPECT_TRUE(same) << c.name << " in " << name(GetParam()) << ", element " << i << ": got "
                        << got[i] << ", want " << want[i];
    }
  }
}

TEST_P(CudaOpTable, RowsOfSpecialNumbersGiveWhatTheyGiveOnTheCpu) {
  const Tensor x = Tensor::from(std::span<const double>(kSpecialRows), {8, 4}).to(GetParam());
  for (const auto& [label, f] : row_functions()) {
    const double step = GetParam() == DType::kF64 ? 1e-14 : 4 * epsilon(GetParam());
    expect_near(f(x.to(kDevice)), numbers(f(x)), step, label);
  }
}

}  // namespace
}  // namespace lockstep::op_table
