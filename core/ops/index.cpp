#include "lockstep/core/ops/index.h"

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/index.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

void check_index(std::string_view op, const Tensor& index, int64_t size) {
  check(index.dim() == 1 && index.dtype() == DType::kI64, op, [&] {
    return str_cat("want an index of one dimension and dtype i64, got shape ",
                   to_string(index.shape()));
  });
  const std::vector<int64_t> places = index.to_vector<int64_t>();
  for (size_t i = 0; i < places.size(); ++i) {
    check(places[i] >= 0 && places[i] < size, op, [&] {
      return str_cat("want places from 0 to ", size - 1, ", got ", places[i], " at position ", i);
    });
  }
}

}  // namespace

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  const int64_t axis = normalize_dim(dim, x.dim(), "index_select");
  check(x.dim() > 0, "index_select", "want a tensor with dimensions, got a scalar");
  check_index("index_select", index, x.size(axis));
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
  check_index("index_add", index, shape[static_cast<size_t>(axis)]);
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

}  // namespace lockstep
