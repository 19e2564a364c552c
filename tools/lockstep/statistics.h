#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "lockstep/core/tensor.h"

namespace lockstep::cli {

// A number as exact as its tensor has it.
using Number = std::variant<int64_t, double>;

// "3", "-0.0357143", "nan", "inf".
std::string number_text(const Number& number);

// What the elements of a tensor are like. NaN counts as none: min, max and mean are those of the
// others, and there are none of these where `numbers` is 0. The mean of bool is the fraction that
// is true.
struct Statistics {
  int64_t numbers = 0;
  int64_t nans = 0;
  Number min = int64_t{0};
  Number max = int64_t{0};
  double mean = 0;
};

Statistics statistics_of(const Tensor& tensor);

// How two tensors of one dtype and shape differ.
struct Difference {
  int64_t differing = 0;        // elements
  double largest = 0;           // |a - b| of those; NaN or infinity where only one of both is such
  int64_t at = -1;              // which element has it, in row-major order
  double largest_relative = 0;  // |a - b| / |b|
};

// What an element of a may be away from b's: atol + rtol |b|. Both 0: every bit counts; otherwise
// NaN equals NaN.
struct Tolerance {
  double atol = 0;
  double rtol = 0;
};

Difference difference_of(const Tensor& a, const Tensor& b, const Tolerance& tolerance);

}  // namespace lockstep::cli
