#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/view.h"

// Memory with a view of it, and a slow, plain way to read and write its elements as doubles.
namespace lockstep::testing {

inline const double kNan = std::numeric_limits<double>::quiet_NaN();
inline const double kInf = std::numeric_limits<double>::infinity();

struct Array {
  std::shared_ptr<void> memory;
  View view;

  const Shape& shape() const { return view.shape; }
  int64_t numel() const { return view.numel(); }

  // The place in memory of element `index`, counted in row-major order.
  int64_t offset(int64_t index) const {
    int64_t out = 0;
    for (size_t d = view.shape.size(); d-- > 0;) {
      out += index % view.shape[d] * view.strides[d];
      index /= view.shape[d];
    }
    return out;
  }
  double get(int64_t index) const {
    return visit_dtype(view.dtype, [&](auto tag) -> double {
      using T = typename decltype(tag)::type;
      const T x = view.as<T>()[offset(index)];
      if constexpr (is_reduced_float_v<T>) {
        return static_cast<float>(x);
      } else {
        return static_cast<double>(x);
      }
    });
  }
  void set(int64_t index, double value) const {
    visit_dtype(view.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (is_reduced_float_v<T>) {
        view.as<T>()[offset(index)] = T(static_cast<float>(value));
      } else {
        view.as<T>()[offset(index)] = static_cast<T>(value);
      }
    });
  }
  std::vector<double> values() const {
    std::vector<double> out;
    for (int64_t i = 0; i < numel(); ++i) out.push_back(get(i));
    return out;
  }
};

// Not initialised. Strides may leave gaps; memory is exactly as long as they reach, so that asan
// sees a step beyond it.
inline Array empty(DType dtype, const Shape& shape, const Strides& strides) {
  int64_t count = lockstep::numel(shape) == 0 ? 0 : 1;
  if (count == 1) {
    for (size_t d = 0; d < shape.size(); ++d) count += (shape[d] - 1) * strides[d];
  }
  const size_t bytes = static_cast<size_t>(count) * size_of(dtype);
  std::shared_ptr<void> memory(::operator new(bytes + 1), [](void* p) { ::operator delete(p); });
  return {memory, View{memory.get(), dtype, kCpu, shape, strides}};
}

inline Array empty(DType dtype, const Shape& shape) {
  return empty(dtype, shape, contiguous_strides(shape));
}

// Element i = f(i).
inline Array filled(Array x, const std::function<double(int64_t)>& f) {
  for (int64_t i = 0; i < x.numel(); ++i) x.set(i, f(i));
  return x;
}

// A number in [low, high) that depends on i without pattern.
inline double noise(int64_t i, double low = -1.5, double high = 1.5) {
  const double u = std::fmod(0.5 + 0.6180339887498949 * static_cast<double>(i + 1), 1);
  return low + (high - low) * u;
}

inline Array sample(DType dtype, const Shape& shape, double low = -1.5, double high = 1.5,
                    int64_t salt = 0) {
  return filled(empty(dtype, shape), [=](int64_t i) { return noise(i + 101 * salt, low, high); });
}

// The same values in memory with the given strides.
inline Array with_strides(const Array& x, const Strides& strides) {
  return filled(empty(x.view.dtype, x.shape(), strides), [&](int64_t i) { return x.get(i); });
}

// Dense strides where dimension order[0] varies slowest.
inline Strides permuted_strides(const Shape& shape, const std::vector<size_t>& order) {
  Strides strides(shape.size());
  int64_t step = 1;
  for (size_t k = order.size(); k-- > 0;) {
    strides[order[k]] = step;
    step *= shape[order[k]];
  }
  return strides;
}

// Strides of a dense memory order, for any rank: row-major, reversed, the second dimension
// innermost (channels-last), and one with gaps.
inline std::vector<Strides> some_strides(const Shape& shape) {
  const size_t rank = shape.size();
  std::vector<size_t> reversed;
  std::vector<size_t> channels_last;
  for (size_t d = 0; d < rank; ++d) reversed.push_back(rank - 1 - d);
  for (size_t d = 0; d < rank; ++d) {
    if (d != 1) channels_last.push_back(d);
  }
  if (rank > 1) channels_last.push_back(1);
  Strides gaps = contiguous_strides(shape);
  for (int64_t& stride : gaps) stride *= 3;
  return {contiguous_strides(shape), permuted_strides(shape, reversed),
          permuted_strides(shape, channels_last), gaps};
}

// One step of a floating dtype, relative.
inline double epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-52;
    case DType::kF32:
      return 0x1p-23;
    case DType::kF16:
      return 0x1p-10;
    default:
      return 0x1p-7;
  }
}

// Whether x is near want, or both are the same infinity or NaN.
inline ::testing::AssertionResult close(double x, double want, double relative,
                                        double absolute = 0) {
  if (std::isnan(want) ? std::isnan(x) : x == want) return ::testing::AssertionSuccess();
  if (std::abs(x - want) <= relative * std::abs(want) + absolute) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "got " << x << ", want " << want;
}

inline constexpr DType kFloats[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
inline constexpr DType kIntegers[] = {DType::kI64, DType::kI32, DType::kU8, DType::kI8};

}  // namespace lockstep::testing
