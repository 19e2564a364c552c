#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/core/tensor.h"
#include "lockstep/kernels/error.h"
#include "lockstep/nn/module.h"

// What the tests of foreign formats share.
namespace lockstep::nn::testing {

// A file that tests/golden/make_files.py made with other people's libraries.
inline std::filesystem::path golden_file(const std::string& name) {
  return std::filesystem::path(LOCKSTEP_GOLDEN) / "files" / name;
}

// The values that make_files.py calls array(k, dtype, *shape).
inline Tensor golden_array(int k, DType dtype, const Shape& shape) {
  NoGrad no_grad;
  Tensor out = Tensor::empty(shape, {DType::kF64});
  for (int64_t i = 0; i < out.numel(); ++i) {
    const int64_t whole = (i * 37 + k * 11) % 101 - 50;
    double value = static_cast<double>(whole);
    if (dtype == DType::kBool) value = whole % 2 == 0 ? 1 : 0;
    if (is_floating(dtype)) value /= 8;
    if (dtype == DType::kU8) value += 50;
    out.data<double>()[i] = value;
  }
  return lockstep::to(out, dtype);
}

// make_files.py's ARRAYS.
inline NamedTensors golden_arrays() {
  return {{"fc.weight", golden_array(1, DType::kF32, {3, 5})},
          {"fc.bias", golden_array(2, DType::kF32, {3})},
          {"half", golden_array(3, DType::kF16, {7})},
          {"double", golden_array(4, DType::kF64, {2, 1, 3})},
          {"flags", golden_array(5, DType::kBool, {5})},
          {"bytes", golden_array(6, DType::kU8, {3, 3})},
          {"small", golden_array(7, DType::kI8, {9})},
          {"int", golden_array(8, DType::kI32, {4})},
          {"count", golden_array(9, DType::kI64, {})},
          {"none", golden_array(10, DType::kF32, {0, 4})}};
}

inline void expect_same(const Tensor& got, const Tensor& want, const std::string& name) {
  ASSERT_TRUE(got.defined()) << name;
  EXPECT_EQ(got.dtype(), want.dtype()) << name;
  ASSERT_EQ(got.shape(), want.shape()) << name;
  NoGrad no_grad;
  EXPECT_EQ(lockstep::to(got, DType::kF64).to_vector<double>(),
            lockstep::to(want, DType::kF64).to_vector<double>())
      << name;
}

// The same names, in any order, with the same tensors.
inline void expect_same(const NamedTensors& got, const NamedTensors& want) {
  EXPECT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    Tensor found;
    for (const auto& [other, candidate] : got) {
      if (other == name) found = candidate;
    }
    expect_same(found, tensor, name);
  }
}

}  // namespace lockstep::nn::testing
