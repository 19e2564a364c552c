// Every op of the table in op_table.h: values and gradients to the second order as PyTorch has
// them, every dtype, strides, broadcasting, empty and 0-dimensional tensors, special numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "op_table.h"
#include "op_table_more.h"

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

std::vector<double> numbers(const Tensor& x) {
  return x.detach().to(DType::kF64).to_vector<double>();
}

// Whether both are NaN, or one infinity, or near.
bool near(double got, double want, double tolerance) {
  if (std::isnan(want) || std::isinf(want)) return std::isnan(want) ? std::isnan(got) : got == want;
  return std::abs(got - want) <= tolerance * (1 + std::abs(want));
}

void expect_near(const Tensor& got, const std::vector<double>& want, double tolerance,
                 const std::string& what) {
  const std::vector<double> found = numbers(got);
  ASSERT_EQ(found.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(near(found[i], want[i], tolerance))
        << what << ", element " << i << ": got " << found[i] << ", want " << want[i];
  }
}

// What the inputs give with `dtype`, out of the graph, or as new leaves.
Tensors converted(const Tensors& inputs, DType dtype, bool leaves = false) {
  Tensors out;
  for (const Tensor& x : inputs) {
    out.push_back(x.detach().to(dtype).clone());
    if (leaves) out.back().set_requires_grad();
  }
  return out;
}

Tensors gradients(const Tensor& y, const Tensors& inputs, bool create_graph) {
  return grad({sum(y * weights_like(y).to(y.dtype()))}, inputs, {}, {.create_graph = create_graph},
              true);
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

const double kSpecial[] = {NAN,   INFINITY, -INFINITY, 0.0,    -0.0,   1.0,   -1.0,
                           0.5,   -0.5,     1e-30,     -1e-30, 1e30,   -1e30, 3e38,
                           -3e38, 87.5,     -87.5,     104.0,  -104.0, 19.0,  -19.0};
const double kSpecialPairs[] = {NAN,  INFINITY, -INFINITY, 0.0,  -0.0,  1.0,
                                -1.0, 2.5,      -2.5,      1e30, -1e30, 1e-30};

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
  const double inf = INFINITY;
  const double rows[] = {1,     NAN, 2,    3, inf, 1,    2,    3,    -inf, 1,    2,
                         -3,    inf, -inf, 1, 2,   -inf, -inf, -inf, -inf, 1e30, 1e30,
                         -1e30, 1,   0,    0, 0,   0,    3e38, 3e38, 1,    1};
  const Tensor x = Tensor::from(std::span<const double>(rows), {8, 4});
  for (const auto& [label, f] : row_functions()) {
    expect_near(f(x), golden(label + ".rows"), 1e-12, label);
    // In f32 what is beyond its range is infinite, and NaN goes wherever it goes in f64.
    const std::vector<double> wide = golden(label + ".rows");
    const std::vector<double> got = numbers(f(x.to(DType::kF32)));
    for (size_t i = 0; i < wide.size(); ++i) {
      if (std::isnan(wide[i]) && label != "var" && label != "std") {
        EXPECT_TRUE(std::isnan(got[i])) << label << " " << i;
      }
    }
  }
}

double epsilon(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-23 : dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
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

// The same values in other memory: dimensions in reverse order, and every second element of a
// larger tensor.
std::vector<Tensors> in_other_memory(const Tensors& inputs) {
  std::vector<Tensors> out(2);
  for (const Tensor& leaf : inputs) {
    const Tensor x = leaf.detach();
    Shape reversed;
    for (int64_t d = x.dim(); d-- > 0;) reversed.push_back(d);
    const Tensor crossed = permute(contiguous(permute(x, reversed)), reversed);
    out[0].push_back(crossed.detach().set_requires_grad());
    Shape larger = x.shape();
    larger.back() *= 2;
    Tensor wide = Tensor::full(larger, NAN, {DType::kF64});
    Tensor every_second = slice(wide, x.dim() - 1, 0, larger.back(), 2);
    every_second.copy_(x);
    out[1].push_back(every_second.detach().set_requires_grad());
  }
  return out;
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
