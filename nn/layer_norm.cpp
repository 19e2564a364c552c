#include "lockstep/nn/layer_norm.h"

#include "absl/strings/str_cat.h"

namespace lockstep::nn {
namespace {

void check_channels(const Tensor& x, int64_t channels, const char* op) {
  check(x.dim() >= 2 && x.size(1) == channels, op, [&] {
    return absl::StrCat("want x (N, ", channels, ", …), got ", lockstep::to_string(x.shape()));
  });
}

const char* text(bool value) { return value ? "true" : "false"; }

}  // namespace

LayerNorm::LayerNorm(const Shape& shape, const LayerNormOptions& options)
    : shape_(shape), options_(options) {
  check(!shape.empty() && options.eps >= 0, "LayerNorm", [&] {
    return absl::StrCat("want a shape of 1 dimension and more and eps of 0 and more, got ",
                        lockstep::to_string(shape), " and ", options.eps);
  });
  if (!options.elementwise_affine) return;
  weight = Tensor::ones(shape);
  register_parameter("weight", weight);
  if (!options.bias) return;
  bias = Tensor::zeros(shape);
  register_parameter("bias", bias);
}

Tensor LayerNorm::forward(const Tensor& x) {
  return layer_norm(x, shape_, weight, bias, options_.eps);
}

std::string LayerNorm::extra_repr() const {
  return absl::StrCat(lockstep::to_string(shape_), ", eps=", options_.eps,
                      ", elementwise_affine=", text(options_.elementwise_affine));
}

GroupNorm::GroupNorm(int64_t num_groups, int64_t num_channels, const GroupNormOptions& options)
    : num_groups_(num_groups), num_channels_(num_channels), options_(options) {
  check(num_groups > 0 && num_channels > 0 && num_channels % num_groups == 0 && options.eps >= 0,
        "GroupNorm", [&] {
          return absl::StrCat("want num_groups that divides num_channels, and eps of 0 and more, ",
                              "got ", num_groups, ", ", num_channels, " and ", options.eps);
        });
  if (!options.affine) return;
  weight = Tensor::ones({num_channels});
  bias = Tensor::zeros({num_channels});
  register_parameter("weight", weight);
  register_parameter("bias", bias);
}

Tensor GroupNorm::forward(const Tensor& x) {
  check_channels(x, num_channels_, "GroupNorm");
  return group_norm(x, num_groups_, weight, bias, options_.eps);
}

std::string GroupNorm::extra_repr() const {
  return absl::StrCat(num_groups_, ", ", num_channels_, ", eps=", options_.eps,
                      ", affine=", text(options_.affine));
}

InstanceNorm::InstanceNorm(int64_t num_features, const InstanceNormOptions& options)
    : num_features_(num_features), options_(options) {
  check(num_features > 0 && options.eps >= 0, "InstanceNorm", [&] {
    return absl::StrCat("want num_features of 1 and more and eps of 0 and more, got ", num_features,
                        " and ", options.eps);
  });
  if (!options.affine) return;
  weight = Tensor::ones({num_features});
  bias = Tensor::zeros({num_features});
  register_parameter("weight", weight);
  register_parameter("bias", bias);
}

Tensor InstanceNorm::forward(const Tensor& x) {
  check_channels(x, num_features_, "InstanceNorm");
  return instance_norm(x, weight, bias, options_.eps);
}

std::string InstanceNorm::extra_repr() const {
  return absl::StrCat(num_features_, ", eps=", options_.eps, ", affine=", text(options_.affine));
}

}  // namespace lockstep::nn
