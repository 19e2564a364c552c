#include "lockstep/nn/dropout.h"

#include "absl/strings/str_cat.h"
#include "lockstep/core/ops/elementwise.h"

namespace lockstep::nn {
namespace {

void check_probability(double p, const char* op) {
  check(p >= 0 && p <= 1, op,
        [&] { return absl::StrCat("want a probability p from 0 to 1, got ", p); });
}

}  // namespace

Tensor dropout(const Tensor& x, double p, Generator* generator) {
  check_probability(p, "dropout");
  check(is_floating(x.dtype()), "dropout", "want an x of floating dtype");
  if (p == 0) return x;
  // Drawn in f32 whatever x is: 16 bits cannot tell probabilities apart finely enough. What is
  // dropped is chosen, not multiplied by zero, so that inf and NaN can be dropped too.
  const Tensor drop = rand(x.shape(), {DType::kF32, x.device()}, generator) < p;
  return where(drop, 0.0, p < 1 ? x * (1 / (1 - p)) : x);
}

Dropout::Dropout(double p) : p_(p) { check_probability(p, "Dropout"); }

Tensor Dropout::forward(const Tensor& x) { return is_training() ? dropout(x, p_) : x; }

std::string Dropout::extra_repr() const { return absl::StrCat("p=", p_); }

}  // namespace lockstep::nn
