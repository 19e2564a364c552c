#include <cmath>

#include "absl/strings/str_cat.h"
#include "lockstep/nn/grad_norm.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {
namespace {

std::vector<Tensor> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> out;
  for (const Tensor& parameter : parameters) {
    if (parameter.has_grad()) out.push_back(parameter.grad());
  }
  return out;
}

}  // namespace

double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm) {
  check(max_norm >= 0, "clip_grad_norm_",
        [&] { return absl::StrCat("want a max_norm of 0 and more, got ", max_norm); });
  const std::vector<Tensor> gradients = gradients_of(parameters);
  const double norm = std::sqrt(squared_norm(gradients));
  // Written so that a norm that is NaN scales too.
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  scale_all("clip_grad_norm_", gradients, factor);
  return norm;
}

void clip_grad_value_(const std::vector<Tensor>& parameters, double max_value) {
  check(max_value >= 0, "clip_grad_value_",
        [&] { return absl::StrCat("want a max_value of 0 and more, got ", max_value); });
  clamp_all("clip_grad_value_", gradients_of(parameters), -max_value, max_value);
}

}  // namespace lockstep::nn
