#include "lockstep/nn/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "absl/strings/str_cat.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/shape_ops.h"

namespace lockstep::nn {
namespace {

double kaiming_std(const Tensor& weight, double a, FanMode mode) {
  const Fans f = fans(weight);
  const int64_t fan = mode == FanMode::kIn ? f.in : f.out;
  return std::sqrt(2.0 / ((1 + a * a) * static_cast<double>(fan)));
}

double xavier_std(const Tensor& weight, double gain) {
  const Fans f = fans(weight);
  return gain * std::sqrt(2.0 / static_cast<double>(f.in + f.out));
}

// A uniform distribution of standard deviation s is as wide as this on both sides.
double half_width(double std) { return std::sqrt(3.0) * std; }

// The share of the standard normal distribution below x.
double normal_cdf(double x) { return std::erfc(-x * std::numbers::sqrt2 / 2) / 2; }

// Its inverse, for 0 < p < 1: a rational approximation (Acklam, 2003, to 1e-9), made exact by one
// step of Halley's.
double normal_quantile(double p) {
  constexpr double kA[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                           1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double kB[] = {-5.447609879822406e+01, 1.615858368580409e+02,  -1.556989798598866e+02,
                           6.680131188771972e+01,  -1.328068155288572e+01, 1};
  constexpr double kC[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                           -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double kD[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                           3.754408661907416e+00, 1};
  const auto polynomial = [](std::span<const double> c, double x) {
    double y = 0;
    for (double v : c) y = y * x + v;
    return y;
  };
  double x = 0;
  if (std::abs(p - 0.5) < 0.47575) {
    const double q = p - 0.5;
    x = q * polynomial(kA, q * q) / polynomial(kB, q * q);
  } else {
    const double q = std::sqrt(-2 * std::log(std::min(p, 1 - p)));
    x = polynomial(kC, q) / polynomial(kD, q);
    if (p > 0.5) x = -x;
  }
  const double error = normal_cdf(x) - p;
  const double step = error * std::sqrt(2 * std::numbers::pi) * std::exp(x * x / 2);
  return x - step / (1 + x * step / 2);
}

}  // namespace

Fans fans(const Tensor& weight) {
  check(weight.dim() >= 2, "fans", [&] {
    return absl::StrCat("want a weight of two dimensions and more, (out, in, ...), got ",
                        to_string(weight.shape()));
  });
  int64_t window = 1;
  for (int64_t i = 2; i < weight.dim(); ++i) window *= weight.size(i);
  return {weight.size(1) * window, weight.size(0) * window};
}

void uniform_(Tensor& tensor, double low, double high, Generator* generator) {
  NoGrad no_grad;
  tensor.copy_(rand(tensor.shape(), tensor.options(), generator) * (high - low) + low);
}

void normal_(Tensor& tensor, double mean, double std, Generator* generator) {
  NoGrad no_grad;
  tensor.copy_(randn(tensor.shape(), tensor.options(), generator) * std + mean);
}

void constant_(Tensor& tensor, double value) {
  NoGrad no_grad;
  tensor.fill_(value);
}

void zeros_(Tensor& tensor) { constant_(tensor, 0); }
void ones_(Tensor& tensor) { constant_(tensor, 1); }

void trunc_normal_(Tensor& tensor, double mean, double std, double low, double high,
                   Generator* generator) {
  // In the upper tail shares are near 1, where few digits are left: the lower one is its mirror.
  const bool mirrored = low > mean;
  const double below = normal_cdf((mirrored ? mean - high : low - mean) / std);
  const double above = normal_cdf((mirrored ? mean - low : high - mean) / std);
  check(
      low < high && std > 0 && below < above && is_floating(tensor.dtype()), "trunc_normal_", [&] {
        return absl::StrCat("want low < high, a std above 0 and a share of N(mean, std^2) between ",
                            "them, got mean ", mean, ", std ", std, ", low ", low, " and high ",
                            high);
      });
  const NoGrad no_grad;
  const Tensor values = rand(tensor.shape(), {DType::kF64}, generator);
  double* x = values.data<double>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    // A draw is a multiple of 2^-53 and may be 0.
    const double share = below + (above - below) * (x[i] + 0x1p-54);
    const double z = normal_quantile(std::min(share, 1 - 0x1p-53));
    x[i] = std::clamp(mean + std * (mirrored ? -z : z), low, high);
  }
  tensor.copy_(values);
}

void orthogonal_(Tensor& weight, double gain, Generator* generator) {
  fans(weight);  // throws below two dimensions
  const NoGrad no_grad;
  const int64_t rows = weight.size(0);
  const int64_t columns = rows == 0 ? 0 : weight.numel() / rows;
  // As many vectors as the shorter side has, each along the longer one.
  const bool wide = columns >= rows;
  const int64_t count = wide ? rows : columns;
  const int64_t size = wide ? columns : rows;
  const Tensor vectors = randn({count, size}, {DType::kF64}, generator);
  double* v = vectors.data<double>();
  const auto dot = [size](const double* a, const double* b) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
    return sum;
  };
  // Gram and Schmidt; twice is enough for all digits (Giraud et al., 2005).
  for (int64_t k = 0; k < count; ++k) {
    double* a = v + k * size;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t j = 0; j < k; ++j) {
        const double* b = v + j * size;
        const double along = dot(a, b);
        for (int64_t i = 0; i < size; ++i) a[i] -= along * b[i];
      }
    }
    const double scale = 1 / std::sqrt(dot(a, a));
    for (int64_t i = 0; i < size; ++i) a[i] *= scale;
  }
  const Tensor matrix = wide ? vectors : transpose(vectors, 0, 1);
  weight.copy_(reshape(matrix * gain, weight.shape()));
}

void kaiming_uniform_(Tensor& weight, double a, Generator* generator, FanMode mode) {
  const double bound = half_width(kaiming_std(weight, a, mode));
  uniform_(weight, -bound, bound, generator);
}

void kaiming_normal_(Tensor& weight, double a, Generator* generator, FanMode mode) {
  normal_(weight, 0, kaiming_std(weight, a, mode), generator);
}

void xavier_uniform_(Tensor& weight, double gain, Generator* generator) {
  const double bound = half_width(xavier_std(weight, gain));
  uniform_(weight, -bound, bound, generator);
}

void xavier_normal_(Tensor& weight, double gain, Generator* generator) {
  normal_(weight, 0, xavier_std(weight, gain), generator);
}

}  // namespace lockstep::nn
