#pragma once

#include <cstdint>

#include "lockstep/core/random.h"
#include "lockstep/core/tensor.h"

// Values that parameters start from. All write in place, not recorded, and draw from `generator`,
// or from default_generator() where it is null. Floating dtypes.
namespace lockstep::nn {

// How many inputs and outputs one unit of a weight sees: a weight (out, in) or (out, in, kh, kw)
// has fan_in = in * kh * kw and fan_out = out * kh * kw. Throws Error(kInvalidArgument) below two
// dimensions.
struct Fans {
  int64_t in;
  int64_t out;
};
Fans fans(const Tensor& weight);

void uniform_(Tensor& tensor, double low, double high, Generator* generator = nullptr);
void normal_(Tensor& tensor, double mean = 0, double std = 1, Generator* generator = nullptr);
void constant_(Tensor& tensor, double value);
void zeros_(Tensor& tensor);
void ones_(Tensor& tensor);

// U(-b, b) with b = sqrt(6 / ((1 + a^2) fan_in)), and N(0, 2 / ((1 + a^2) fan_in)): He et al.,
// 2015, for a leaky ReLU of slope a below zero.
void kaiming_uniform_(Tensor& weight, double a = 0, Generator* generator = nullptr);
void kaiming_normal_(Tensor& weight, double a = 0, Generator* generator = nullptr);

// U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)), and N(0, 2 gain^2 / (fan_in + fan_out)):
// Glorot and Bengio, 2010.
void xavier_uniform_(Tensor& weight, double gain = 1, Generator* generator = nullptr);
void xavier_normal_(Tensor& weight, double gain = 1, Generator* generator = nullptr);

}  // namespace lockstep::nn
