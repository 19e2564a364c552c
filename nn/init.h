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

// N(mean, std^2) cut off below `low` and above `high`, which are values, not standard deviations.
// Throws Error(kInvalidArgument) unless low < high, std > 0 and the distribution has a share there.
void trunc_normal_(Tensor& tensor, double mean = 0, double std = 1, double low = -2,
                   double high = 2, Generator* generator = nullptr);

// Which of the two fans keeps its variance: kIn in the forward pass, kOut in backward.
enum class FanMode { kIn, kOut };

// U(-b, b) with b = sqrt(6 / ((1 + a^2) fan)), and N(0, 2 / ((1 + a^2) fan)): He et al., 2015, for
// a leaky ReLU of slope a below zero.
void kaiming_uniform_(Tensor& weight, double a = 0, Generator* generator = nullptr,
                      FanMode mode = FanMode::kIn);
void kaiming_normal_(Tensor& weight, double a = 0, Generator* generator = nullptr,
                     FanMode mode = FanMode::kIn);

// U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)), and N(0, 2 gain^2 / (fan_in + fan_out)):
// Glorot and Bengio, 2010.
void xavier_uniform_(Tensor& weight, double gain = 1, Generator* generator = nullptr);
void xavier_normal_(Tensor& weight, double gain = 1, Generator* generator = nullptr);

// gain times a random matrix with orthonormal rows, or columns where there are more rows than
// columns: weight (out, in, …) is taken as (out, in * …), and every such matrix is as likely (Saxe
// et al., 2014). Takes out in * … * min(out, in * …) operations, in one thread.
void orthogonal_(Tensor& weight, double gain = 1, Generator* generator = nullptr);

}  // namespace lockstep::nn
