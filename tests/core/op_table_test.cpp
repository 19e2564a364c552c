// Every op of the table in op_table.h: values and gradients to the second order as PyTorch has
// them, every dtype, strides, broadcasting, empty and 0-dimensional tensors, special numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "op_table_checks.h"

namespace lockstep::op_table {
namespace {

// The values under `name` in ops.inc; none, and a failed test, where there are none.
std::vector<double> golden(const std::string& name) {
  static const auto all = [] {
    std::map<std::string, std::vector<double>> out;
    std::istringstream file(
#include "../golden/ops.inc"
    );
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string key;
      words >> key;
      std::vector<double>& values = out[key];
      for (std::string word; words >> word;) values.push_back(std::stod(word));
    }
    return out;
  }();
  const auto found = all.find(name);
  if (found == all.end()) {
    ADD_FAILURE() << "ops.inc has no " << name;
    return {};
  }
  return found->second;
}

void expect_gradients(const Tensors& got, const std::string& name, const std::string& order) {
  for (size_t i = 0; i < got.size(); ++i) {
    const std::string key = name + "." + std::to_string(i) + order;
    const std::vector<double> want = golden(key);
    const Tensor zero = Tensor::zeros({static_cast<int64_t>(want.size())}, {DType::kF64});
    expect_near(got[i].defined() ? got[i] : zero, want, 1e-12, key);
  }
}

// Sums of a few dozen products of numbers near 1: 1e-12 leaves room for their order, and for the
// 15 digits of the golden numbers, and for nothing else.
TEST(OpTable, ValuesAndGradientsToTheSecondOrderAreThoseOfPyTorch) {
  for (const Case& c : cases()) {
    const Tensor y = c.function(c.inputs);
    expect_near(y, golden(c.name + ".y"), 1e-12, c.name);
    if (!y.requires_grad()) continue;
    expect_gradients(gradients(y, c.inputs, false), c.name, ".grad");
    const Tensor again = c.function(c.inputs);
    const Tensors first = gradients(again, c.inputs, true);
    expect_gradients(first, c.name, ".grad");
    Tensor total = Tensor::scalar(0, {DType::kF64});
    for (const Tensor& g : first) {
      if (g.defined()) total = total + sum(g * weights_like(g));
    }
    Tensors second(c.inputs.size());
    if (total.requires_grad()) second = grad({total}, c.inputs, {}, {}, true);
    expect_gradients(second, c.name, ".grad2");
  }
}

TEST(OpTable, SpecialNumbersGiveWhatTheyGiveInPyTorch) {
  const Tensor one = Tensor::from(std::span<const double>(kSpecial), {21});
  const Tensor pair = Tensor::from(std::span<const double>(kSpecialPairs), {12});
  for (const Case& c : cases()) {
    if (c.kind != Kind::kElementwise || c.name.ends_with("_broadcast")) continue;
    for (const DType dtype : {DType::kF64, DType::kF32}) {
      const bool binary = c.inputs.size() == 2;
      const Tensor y = binary ? c.function({unsqueeze(pair, 1).to(dtype), pair.to(dtype)})
                              : c.function({one.to(dtype)});
      const std::vector<double> found = numbers(y);
      const std::vector<double> want =
          golden(c.name + (dtype == DType::kF64 ? ".special.f64" : ".special.f32"));
      ASSERT_EQ(found.size(), want.size()) << c.name;
      for (size_t i = 0; i < want.size(); ++i) {
        const double step = dtype == DType::kF64 ? 1e-14 : 1e-6;
        const bool same = std::isfinite(want[i])
                              ? std::abs(found[i] - want[i]) <= step * std::abs(want[i]) + 1e-37
                              : near(found[i], want[i], 0);
        EXPECT_TRUE(same) << c.name << " " << name(dtype) << " of "
                          << (binary ? kSpecialPairs[i / 12] : kSpecial[i]) << " and "
                          << (binary ? kSpecialPairs[i % 12] : 0) << ": got " << found[i]
                          << ", want " << want[i];
      }
    }
  }
}

TEST(OpTable, RowsOfSpecialNumbersGiveWhatTheyGiveInPyTorch) {
  const Tensor x = Tensor::from(std::span<const double>(kSpecialRows), {8, 4});
  for (const auto& [label, f] : row_functions()) {
    expect_near(f(x), golden(label + ".rows"), 1e-12, label);
    // In f32 what is beyond its range is infinite, and NaN is where it is in f64.
    const std::vector<double> wide = golden(label + ".rows");
    const std::vector<double> got = numbers(f(x.to(DType::kF32)));
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_EQ(std::isnan(got[i]), std::isnan(wide[i])) << label << " " << i;
    }
  }
}

// The result in each dtype is that of f64 for the same (rounded) inputs, rounded.
TEST(OpTable, EveryFloatingDtypeGivesTheRoundedResult) {
  for (const Case& c : cases()) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const Tensors inputs = converted(c.inputs, dtype, true);
      const Tensors wide = converted(inputs, DType::kF64, true);
      const Tensor y = c.function(inputs);
      const Tensor want = c.function(wide);
      const double tolerance = 4 * c.loose * epsilon(dtype);
      const std::string what = c.name + " in " + std::string(name(dtype));
      EXPECT_EQ(y.dtype(), is_floating(want.dtype()) ? dtype : want.dtype()) << what;
      expect_near(y, numbers(want), tolerance, what);
      if (!y.requires_grad()) continue;
      const Tensors got_first = gradients(y, inputs, false);
      const Tensors want_first = gradients(want, wide, false);
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (!want_first[i].defined()) continue;
        EXPECT_EQ(got_first[i].dtype(), dtype) << what;
        double largest = 1;  // gradients are sums: what is lost depends on the largest summand
        for (double g : numbers(want_first[i])) largest = std::max(largest, std::abs(g));
        expect_near(got_first[i], numbers(want_first[i]), 4 * largest * tolerance,
                    what + ", gradient " + std::to_string(i));
      }
    }
  }
}

TEST(OpTable, StridesChangeNothing) {
  for (const Case& c : cases()) {
    const Tensor want = c.function(c.inputs);
    Tensors want_first;
    if (want.requires_grad()) want_first = gradients(want, c.inputs, false);
    for (const Tensors& inputs : in_other_memory(c.inputs)) {
      const Tensor y = c.function(inputs);
      expect_near(y, numbers(want), 1e-14, c.name);
      if (want_first.empty()) continue;
      const Tensors first = gradients(y, inputs, false);
      for (size_t i = 0; i < first.size(); ++i) {
        if (first[i].defined()) expect_near(first[i], numbers(want_first[i]), 1e-13, c.name);
      }
    }
  }
}

TEST(OpTable, BroadcastOperandsAreAsIfTheyWereCopied) {
  for (const Case& c : cases()) {
    if (!c.name.ends_with("_broadcast")) continue;
    const Shape shape = {3, 5, 2};
    Tensors copies;
    for (const Tensor& x : c.inputs) {
      copies.push_back(expand(x, shape).detach().contiguous().clone().set_requires_grad());
    }
    const Tensor y = c.function(c.inputs);
    const Tensor want = c.function(copies);
    EXPECT_EQ(y.shape(), shape) << c.name;
    EXPECT_EQ(numbers(y), numbers(want)) << c.name;
    if (!y.requires_grad()) continue;
    const Tensors got_first = gradients(y, c.inputs, false);
    const Tensors want_first = gradients(want, copies, false);
    for (size_t i = 0; i < got_first.size(); ++i) {
      expect_near(got_first[i], numbers(sum_to(want_first[i], c.inputs[i].shape())), 1e-14, c.name);
    }
  }
}

TEST(OpTable, EmptyTensorsGiveWhatTheirShapesSay) {
  int tried = 0;
  for (const Case& c : cases()) {
    std::vector<Shape> shapes = c.empty;
    Shape want = c.empty_result;
    if (c.kind == Kind::kElementwise) {
      shapes = std::vector<Shape>(c.inputs.size(), Shape{3, 0});
      want = {3, 0};
    }
    if (shapes.empty()) continue;
    ++tried;
    Tensors inputs;
    for (const Shape& shape : shapes) inputs.push_back(sample(shape));
    const Tensor y = c.function(inputs);
    EXPECT_EQ(y.shape(), want) << c.name;
    if (!y.requires_grad()) continue;
    const Tensors first = gradients(y, inputs, true);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_TRUE(!first[i].defined() || first[i].shape() == shapes[i]) << c.name;
    }
  }
  EXPECT_GT(tried, 90);
}

TEST(OpTable, ElementwiseOpsTakeScalars) {
  for (const Case& c : cases()) {
    if (c.kind != Kind::kElementwise || c.name.ends_with("_broadcast")) continue;
    Tensors scalars, lines;
    for (const Tensor& x : c.inputs) {
      scalars.push_back(x.detach().flatten().select(0, 0).clone().set_requires_grad());
      lines.push_back(reshape(scalars.back().detach(), {1}).clone().set_requires_grad());
    }
    const Tensor y = c.function(scalars);
    const Tensor want = c.function(lines);
    EXPECT_EQ(y.shape(), Shape{}) << c.name;
    EXPECT_EQ(numbers(y), numbers(want)) << c.name;
    if (!y.requires_grad()) continue;
    const Tensors got_first = gradients(y, scalars, false);
    const Tensors want_first = gradients(want, lines, false);
    for (size_t i = 0; i < scalars.size(); ++i) {
      EXPECT_EQ(got_first[i].shape(), Shape{}) << c.name;
      EXPECT_EQ(numbers(got_first[i]), numbers(want_first[i])) << c.name;
    }
  }
}

TEST(OpTable, TheSameCallGivesTheSameBits) {
  for (const Case& c : cases()) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      const Tensors inputs = converted(c.inputs, dtype, true);
      const Tensor once = c.function(inputs);
      const Tensor twice = c.function(inputs);
      EXPECT_EQ(numbers(once), numbers(twice)) << c.name;
      if (!once.requires_grad()) continue;
      const Tensors a = gradients(once, inputs, false);
      const Tensors b = gradients(twice, inputs, false);
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(!a[i].defined() || numbers(a[i]) == numbers(b[i])) << c.name;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::op_table
