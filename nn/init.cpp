#include "lockstep/nn/init.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"

namespace lockstep::nn {
namespace {

double kaiming_std(const Tensor& weight, double a) {
  return std::sqrt(2.0 / ((1 + a * a) * static_cast<double>(fans(weight).in)));
}

double xavier_std(const Tensor& weight, double gain) {
  const Fans f = fans(weight);
  return gain * std::sqrt(2.0 / static_cast<double>(f.in + f.out));
}

// A uniform distribution of standard deviation s is as wide as this on both sides.
double half_width(double std) { return std::sqrt(3.0) * std; }

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

void kaiming_uniform_(Tensor& weight, double a, Generator* generator) {
  const double bound = half_width(kaiming_std(weight, a));
  uniform_(weight, -bound, bound, generator);
}

void kaiming_normal_(Tensor& weight, double a, Generator* generator) {
  normal_(weight, 0, kaiming_std(weight, a), generator);
}

void xavier_uniform_(Tensor& weight, double gain, Generator* generator) {
  const double bound = half_width(xavier_std(weight, gain));
  uniform_(weight, -bound, bound, generator);
}

void xavier_normal_(Tensor& weight, double gain, Generator* generator) {
  normal_(weight, 0, xavier_std(weight, gain), generator);
}

}  // namespace lockstep::nn
