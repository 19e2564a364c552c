#pragma once

#include <gtest/gtest.h>

#include "op_table_more.h"

// How the tests of the table hold one way of computing an entry to another.
namespace lockstep::op_table {

inline std::vector<double> numbers(const Tensor& x) {
  return x.detach().to(DType::kF64).to_vector<double>();
}

// Whether both are NaN, or one infinity, or near.
inline bool near(double got, double want, double tolerance) {
  if (std::isnan(want) || std::isinf(want)) return std::isnan(want) ? std::isnan(got) : got == want;
  return std::abs(got - want) <= tolerance * (1 + std::abs(want));
}

inline void expect_near(const Tensor& got, const std::vector<double>& want, double tolerance,
                        const std::string& what) {
  const std::vector<double> found = numbers(got);
  ASSERT_EQ(found.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(near(found[i], want[i], tolerance))
        << what << ", element " << i << ": got " << found[i] << ", want " << want[i];
  }
}

// What the inputs give with `dtype`, out of the graph, or as new leaves.
inline Tensors converted(const Tensors& inputs, DType dtype, bool leaves = false) {
  Tensors out;
  for (const Tensor& x : inputs) {
    out.push_back(x.detach().to(dtype).clone());
    if (leaves) out.back().set_requires_grad();
  }
  return out;
}

inline Tensors gradients(const Tensor& y, const Tensors& inputs, bool create_graph) {
  return grad({sum(y * weights_like(y).to(y.dtype()))}, inputs, {}, {.create_graph = create_graph},
              true);
}

inline double epsilon(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-23 : dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
}

inline constexpr double kSpecial[] = {NAN,   INFINITY, -INFINITY, 0.0,    -0.0,   1.0,   -1.0,
                                      0.5,   -0.5,     1e-30,     -1e-30, 1e30,   -1e30, 3e38,
                                      -3e38, 87.5,     -87.5,     104.0,  -104.0, 19.0,  -19.0};
inline constexpr double kSpecialPairs[] = {NAN,  INFINITY, -INFINITY, 0.0,  -0.0,  1.0,
                                           -1.0, 2.5,      -2.5,      1e30, -1e30, 1e-30};

inline constexpr double kSpecialRows[] = {
    1,     NAN,      2,         3, INFINITY, 1,         2,         3,         -INFINITY, 1,    2,
    -3,    INFINITY, -INFINITY, 1, 2,        -INFINITY, -INFINITY, -INFINITY, -INFINITY, 1e30, 1e30,
    -1e30, 1,        0,         0, 0,        0,         3e38,      3e38,      1,         1};

// The same values as leaves in other memory: dimensions in reverse order, and every second element
// of a larger tensor.
inline std::vector<Tensors> in_other_memory(const Tensors& inputs) {
  std::vector<Tensors> out(2);
  for (const Tensor& leaf : inputs) {
    const Tensor x = leaf.detach();
    Shape reversed;
    for (int64_t d = x.dim(); d-- > 0;) reversed.push_back(d);
    const Tensor crossed = permute(contiguous(permute(x, reversed)), reversed);
    out[0].push_back(crossed.detach().set_requires_grad());
    Shape larger = x.shape();
    larger.back() *= 2;
    Tensor wide = Tensor::full(larger, NAN, x.options());
    Tensor every_second = slice(wide, x.dim() - 1, 0, larger.back(), 2);
    every_second.copy_(x);
    out[1].push_back(every_second.detach().set_requires_grad());
  }
  return out;
}

}  // namespace lockstep::op_table
