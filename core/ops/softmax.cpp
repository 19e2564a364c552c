#include "lockstep/core/ops/softmax.h"

#include "lockstep/core/autocast.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/softmax.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

int64_t axis_of(const Tensor& x, int64_t dim, std::string_view op) {
  check(is_floating(x.dtype()) && x.dim() > 0, op, [&] {
    return str_cat("want a floating tensor of one dimension and more, got shape ",
                   to_string(x.shape()));
  });
  return normalize_dim(dim, x.dim(), op);
}

}  // namespace

Tensor softmax(const Tensor& x_in, int64_t dim) {
  const Tensor x = autocast_f32(x_in);
  const int64_t axis = axis_of(x, dim, "softmax");
  Tensor y = empty_like(x);
  launch<kernels::Softmax>(x.device(), x.view(), y.view(), axis);
  return record("softmax", y, {x}, [y = Saved::result(y), axis](const Tensor& g) {
    const Tensor value = y.get();
    if (grad_enabled()) return Tensors{value * (g - sum(g * value, {axis}, true))};
    Tensor gx = empty_like(value);
    launch<kernels::SoftmaxBackward>(g.device(), g.view(), value.view(), gx.view(), axis);
    return Tensors{gx};
  });
}

Tensor log_softmax(const Tensor& x_in, int64_t dim) {
  const Tensor x = autocast_f32(x_in);
  const int64_t axis = axis_of(x, dim, "log_softmax");
  Tensor y = empty_like(x);
  launch<kernels::LogSoftmax>(x.device(), x.view(), y.view(), axis);
  return record("log_softmax", y, {x}, [y = Saved::result(y), axis](const Tensor& g) {
    const Tensor value = y.get();
    if (grad_enabled()) return Tensors{g - exp(value) * sum(g, {axis}, true)};
    Tensor gx = empty_like(value);
    launch<kernels::LogSoftmaxBackward>(g.device(), g.view(), value.view(), gx.view(), axis);
    return Tensors{gx};
  });
}

}  // namespace lockstep
