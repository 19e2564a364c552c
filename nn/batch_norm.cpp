#include "lockstep/nn/batch_norm.h"

#include "absl/strings/str_cat.h"
#include "lockstep/core/autograd.h"

namespace lockstep::nn {
namespace {

void check_dims(const Tensor& x, int64_t least, int64_t most, const char* op, const char* wanted) {
  check(x.dim() >= least && x.dim() <= most, op,
        [&] { return absl::StrCat("want x ", wanted, ", got shape ", to_string(x.shape())); });
}

}  // namespace

BatchNorm::BatchNorm(int64_t num_features, const BatchNormOptions& options)
    : num_features_(num_features), options_(options) {
  check(num_features > 0 && options.eps >= 0, "BatchNorm", [&] {
    return absl::StrCat("want num_features of 1 and more and eps of 0 and more, got ", num_features,
                        " and ", options.eps);
  });
  const double momentum = options.momentum.value_or(0);
  check(momentum >= 0 && momentum <= 1, "BatchNorm",
        [&] { return absl::StrCat("want a momentum from 0 to 1, got ", momentum); });
  if (options.affine) {
    weight = Tensor::ones({num_features});
    bias = Tensor::zeros({num_features});
    register_parameter("weight", weight);
    register_parameter("bias", bias);
  }
  if (options.track_running_stats) {
    running_mean = Tensor::zeros({num_features});
    running_var = Tensor::ones({num_features});
    num_batches_tracked = Tensor::zeros({}, {DType::kI64});
    register_buffer("running_mean", running_mean);
    register_buffer("running_var", running_var);
    register_buffer("num_batches_tracked", num_batches_tracked);
  }
}

Tensor BatchNorm::forward(const Tensor& x) {
  check(x.dim() >= 2 && x.size(1) == num_features_, "BatchNorm", [&] {
    return absl::StrCat("want x (N, ", num_features_, ", …), got shape ",
                        lockstep::to_string(x.shape()));
  });
  // A batch of no samples is none, unless other ranks have some.
  const bool track =
      is_training() && options_.track_running_stats && (x.numel() > 0 || group_ != nullptr);
  // The host reads the number where it needs it alone: it would wait for a device.
  const bool averages = track && !options_.momentum;
  const double batches = averages ? static_cast<double>(num_batches_tracked.item_i64() + 1) : 1;
  const Tensor y = batch_norm(x, {.weight = weight,
                                  .bias = bias,
                                  .running_mean = running_mean,
                                  .running_var = running_var,
                                  .training = is_training() || !options_.track_running_stats,
                                  .momentum = options_.momentum.value_or(1 / batches),
                                  .eps = options_.eps,
                                  .group = is_training() ? group_ : nullptr});
  if (track) num_batches_tracked.add_(1);
  return y;
}

std::string BatchNorm::extra_repr() const {
  return absl::StrCat(num_features_, ", eps=", options_.eps,
                      ", momentum=", options_.momentum ? absl::StrCat(*options_.momentum) : "none",
                      ", affine=", options_.affine ? "true" : "false",
                      ", track_running_stats=", options_.track_running_stats ? "true" : "false",
                      group_ ? ", synchronised" : "");
}

Tensor BatchNorm1d::forward(const Tensor& x) {
  check_dims(x, 2, 3, "BatchNorm1d", "(N, C) or (N, C, L)");
  return BatchNorm::forward(x);
}

Tensor BatchNorm2d::forward(const Tensor& x) {
  check_dims(x, 4, 4, "BatchNorm2d", "(N, C, H, W)");
  return BatchNorm::forward(x);
}

Tensor BatchNorm3d::forward(const Tensor& x) {
  check_dims(x, 5, 5, "BatchNorm3d", "(N, C, D, H, W)");
  return BatchNorm::forward(x);
}

}  // namespace lockstep::nn
