#include "lockstep/core/ops/index.h"

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/gather.h"
#include "lockstep/kernels/index.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/sort.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

// The kernels check the places themselves.
void check_index(std::string_view op, const Tensor& x, const Tensor& index) {
  check(index.dim() == 1 && index.dtype() == DType::kI64, op, [&] {
    const std::string_view dtype = name(index.dtype());
    return str_cat("want an index of one dimension and dtype i64, got shape ",
                   to_string(index.shape()), " and ", dtype);
  });
  check(x.dim() > 0, op, "want a tensor with dimensions, got a scalar");
  check(x.device() == index.device(), op, "want the index on the tensor's device");
}

// `small` has index's shape; `large` may be larger along `axis`, and is nowhere smaller elsewhere.
void check_gather(std::string_view op, const Tensor& large, const Tensor& index, const Shape& small,
                  int64_t axis) {
  bool fits = large.dim() > 0 && index.shape() == small && index.dim() == large.dim() &&
              index.dtype() == DType::kI64 && index.device() == large.device();
  for (size_t d = 0; fits && d < small.size(); ++d) {
    fits = static_cast<int64_t>(d) == axis || small[d] <= large.shape()[d];
  }
  check(fits, op, [&] {
    const std::string_view dtype = name(index.dtype());
    return str_cat("want an i64 index of the shape of what it moves, with the dimensions of x ",
                   to_string(large.shape()), " and nowhere larger but along ", axis,
                   ", got an index ", to_string(index.shape()), " of ", dtype, " for ",
                   to_string(small));
  });
}

}  // namespace

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  const int64_t axis = normalize_dim(dim, x.dim(), "index_select");
  check_index("index_select", x, index);
  Shape shape = x.shape();
  shape[static_cast<size_t>(axis)] = index.numel();
  Tensor y = Tensor::empty(shape, x.options());
  launch<kernels::IndexSelect>(x.device(), x.view(), index.view(), y.view(), axis);
  return record("index_select", y, {x},
                [index = Saved(index), x_shape = x.shape(), axis](const Tensor& g) {
                  return Tensors{index_add(x_shape, axis, index.get(), g)};
                });
}

Tensor index_add(const Shape& shape, int64_t dim, const Tensor& index, const Tensor& x) {
  const int64_t axis = normalize_dim(dim, x.dim(), "index_add");
  Shape wanted = shape;
  if (wanted.size() == x.shape().size() && x.dim() > 0)
    wanted[static_cast<size_t>(axis)] = index.numel();
  check(x.dim() > 0 && x.shape() == wanted, "index_add",
        [&] { return str_cat("want x ", to_string(wanted), ", got ", to_string(x.shape())); });
  check_index("index_add", x, index);
  Tensor y = Tensor::zeros(shape, x.options());
  launch<kernels::IndexAdd>(x.device(), x.view(), index.view(), y.view(), axis);
  return record("index_add", y, {x}, [index = Saved(index), axis](const Tensor& g) {
    return Tensors{index_select(g, axis, index.get())};
  });
}

Tensor embedding(const Tensor& weight, const Tensor& index) {
  check(weight.dim() == 2 && index.dtype() == DType::kI64, "embedding", [&] {
    return str_cat("want weight (V, D) and an i64 index, got shapes ", to_string(weight.shape()),
                   " and ", to_string(index.shape()));
  });
  Shape shape = index.shape();
  shape.push_back(weight.size(1));
  return reshape(index_select(weight, 0, reshape(index, {index.numel()})), shape);
}

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  const int64_t axis = normalize_dim(dim, x.dim(), "gather");
  check_gather("gather", x, index, index.shape(), axis);
  Tensor y = Tensor::empty(index.shape(), x.options());
  launch<kernels::Gather>(x.device(), x.view(), index.view(), y.view(), axis);
  return record(
      "gather", y, {x}, [index = Saved(index), x_shape = x.shape(), axis](const Tensor& g) {
        return Tensors{scatter_add(Tensor::zeros(x_shape, g.options()), axis, index.get(), g)};
      });
}

Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  check_same("scatter_add", x, source);
  const int64_t axis = normalize_dim(dim, x.dim(), "scatter_add");
  check_gather("scatter_add", x, index, source.shape(), axis);
  Tensor y;
  {
    NoGrad no_grad;
    y = clone(x);
  }
  launch<kernels::ScatterAdd>(x.device(), source.view(), index.view(), y.view(), axis);
  return record("scatter_add", y, {x, source}, [index = Saved(index), axis](const Tensor& g) {
    return Tensors{g, wants_gradient(1) ? gather(g, axis, index.get()) : Tensor()};
  });
}

Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  check_same("scatter", x, source);
  const int64_t axis = normalize_dim(dim, x.dim(), "scatter");
  check_gather("scatter", x, index, source.shape(), axis);
  Tensor y;
  {
    NoGrad no_grad;
    y = clone(x);
  }
  launch<kernels::Scatter>(x.device(), source.view(), index.view(), y.view(), axis);
  return record("scatter", y, {x, source}, [index = Saved(index), axis](const Tensor& g) {
    const Tensor at = index.get();
    Tensors out(2);
    if (wants_gradient(0)) out[0] = scatter(g, axis, at, Tensor::zeros(at.shape(), g.options()));
    if (wants_gradient(1)) {
      // An element counts where its own number is what stayed at its place.
      const Tensor order = reshape(Tensor::arange(at.numel(), at.options()), at.shape());
      const Tensor stayed = scatter(Tensor::zeros(g.shape(), at.options()), axis, at, order);
      out[1] = where(eq(gather(stayed, axis, at), order), gather(g, axis, at), 0.0);
    }
    return out;
  });
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  check(mask.defined() && broadcast_shapes(x.shape(), mask.shape(), "masked_fill") == x.shape(),
        "masked_fill", [&] {
          return str_cat("want a mask that broadcasts to ", to_string(x.shape()), ", got ",
                         to_string(mask.shape()));
        });
  return where(mask, value, x);
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check(mask.dtype() == DType::kBool && mask.device() == x.device(), "masked_select", [&] {
    const std::string_view dtype = name(mask.dtype());
    return str_cat("want a mask of bool on x's device, got ", dtype);
  });
  const Shape shape = broadcast_shapes(x.shape(), mask.shape(), "masked_select");
  const Tensor whole = expand(mask, shape).detach();
  const int64_t count = launch<kernels::CountNonzero>(x.device(), whole.view());
  const Tensor places = Tensor::empty({count}, {DType::kI64, x.device()});
  launch<kernels::Nonzero>(x.device(), whole.view(), places.view());
  return index_select(reshape(expand(x, shape), {numel(shape)}), 0, places);
}

Tensor nonzero(const Tensor& x) {
  const int64_t count = launch<kernels::CountNonzero>(x.device(), x.view());
  const Tensor places = Tensor::empty({count, x.dim()}, {DType::kI64, x.device()});
  launch<kernels::Nonzero>(x.device(), x.view(), places.view());
  return places;
}

Tensor one_hot(const Tensor& index, int64_t classes) {
  check(index.dtype() == DType::kI64 && classes > 0, "one_hot", [&] {
    const std::string_view dtype = name(index.dtype());
    return str_cat("want an index of i64 and classes over 0, got ", dtype, " and ", classes);
  });
  check(index.numel() == 0 || (min(index).item_i64() >= 0 && max(index).item_i64() < classes),
        "one_hot", [&] {
          return str_cat("want places from 0 to ", classes - 1, ", got some from ",
                         min(index).item_i64(), " to ", max(index).item_i64());
        });
  return to(eq(unsqueeze(index, -1), Tensor::arange(classes, {DType::kI64, index.device()})),
            DType::kI64);
}

}  // namespace lockstep
