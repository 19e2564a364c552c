#include "lockstep/core/ops/rearrange.h"

#include <algorithm>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/index.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/sort.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

int64_t axis_of(const Tensor& x, int64_t dim, std::string_view op) {
  check(x.dim() > 0, op, "want a tensor with dimensions, got a scalar");
  return normalize_dim(dim, x.dim(), op);
}

// The part of `y` that pad() filled with x.
Tensor inside(Tensor y, const Shape& pads, const Shape& x_shape) {
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    const size_t d = x_shape.size() - 1 - i;
    y = narrow(y, static_cast<int64_t>(d), pads[2 * i], x_shape[d]);
  }
  return y;
}

Tensor pad_with_value(const Tensor& x, const Shape& pads, const Shape& shape, double value) {
  Tensor y = Tensor::full(shape, value, x.options());
  {
    NoGrad no_grad;
    inside(y, pads, x.shape()).copy_(x);
  }
  return record("pad", y, {x}, [pads, x_shape = x.shape()](const Tensor& g) {
    return Tensors{inside(g, pads, x_shape)};
  });
}

Tensor pad_along(const Tensor& x, int64_t dim, int64_t before, int64_t after, PadMode mode) {
  const int64_t size = x.size(dim);
  const int64_t room = mode == PadMode::kReflect ? size - 1 : (size > 0 ? before + after : 0);
  check(before <= room && after <= room, "pad", [&] {
    return str_cat("want at most ", room, " elements on either side of dimension ", dim, " of ",
                   to_string(x.shape()), " in this mode, got ", before, " and ", after);
  });
  std::vector<int64_t> places;
  for (int64_t i = -before; i < size + after; ++i) {
    const int64_t last = size - 1;
    if (mode == PadMode::kReflect) {
      places.push_back(i < 0 ? -i : (i > last ? 2 * last - i : i));
    } else {
      places.push_back(std::clamp<int64_t>(i, 0, last));
    }
  }
  const auto count = static_cast<int64_t>(places.size());
  return index_select(x, dim, Tensor::from(places, {count}).to(x.device()));
}

// x where keep(column - row) holds, else 0. Each row of the mask is the one above it, one element
// further on: one line of memory holds them all.
template <class Keep>
Tensor triangle(const Tensor& x, std::string_view op, const Keep& keep) {
  check(x.dim() >= 2, op,
        [&] { return str_cat("want two dimensions or more, got shape ", to_string(x.shape())); });
  const int64_t rows = x.size(-2);
  const int64_t columns = x.size(-1);
  const int64_t last_row = std::max<int64_t>(rows - 1, 0);
  const Tensor apart = Tensor::arange(last_row + columns, {DType::kI64, x.device()});
  const Tensor line = keep(apart - static_cast<double>(last_row));
  return where(alias(line, {rows, columns}, {-1, 1}, last_row), x, 0.0);
}

Tensor order_of(const Tensor& x, int64_t axis, int64_t count, bool descending) {
  Shape shape = x.shape();
  shape[static_cast<size_t>(axis)] = count;
  Tensor places = Tensor::empty(shape, {DType::kI64, x.device()});
  launch<kernels::ArgSort>(x.device(), x.view(), places.view(), axis, descending);
  return places;
}

}  // namespace

Tensor pad(const Tensor& x, const Shape& pads, PadMode mode, double value) {
  const auto message = [&] {
    return str_cat("want two numbers of 0 and more for each of at most ", x.dim(),
                   " dimensions, got ", to_string(pads));
  };
  check(pads.size() % 2 == 0 && pads.size() / 2 <= x.shape().size(), "pad", message);
  Shape shape = x.shape();
  for (size_t i = 0; i < pads.size(); ++i) {
    check(pads[i] >= 0, "pad", message);
    shape[shape.size() - 1 - i / 2] += pads[i];
  }
  if (mode == PadMode::kConstant) return pad_with_value(x, pads, shape, value);
  Tensor y = x;
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    y = pad_along(y, x.dim() - 1 - static_cast<int64_t>(i), pads[2 * i], pads[2 * i + 1], mode);
  }
  return y;
}

Tensor flip(const Tensor& x, const Shape& dims) {
  Strides strides = x.strides();
  int64_t offset = x.impl()->offset;
  for (int64_t dim : dims) {
    const auto d = static_cast<size_t>(axis_of(x, dim, "flip"));
    offset += strides[d] * std::max<int64_t>(x.shape()[d] - 1, 0);
    strides[d] = -strides[d];
  }
  Tensor y = Tensor::empty(x.shape(), x.options());
  launch<kernels::Copy>(x.device(), alias(x, x.shape(), strides, offset).view(), y.view());
  return record("flip", y, {x}, [dims](const Tensor& g) { return Tensors{flip(g, dims)}; });
}

Tensor roll(const Tensor& x, int64_t shift, int64_t dim) {
  const int64_t axis = axis_of(x, dim, "roll");
  const int64_t size = x.size(axis);
  if (size == 0) return x;
  const int64_t first = ((-shift % size) + size) % size;  // what comes to stand in front
  const Tensor parts[] = {narrow(x, axis, first, size - first), narrow(x, axis, 0, first)};
  return cat(parts, axis);
}

Tensor tril(const Tensor& x, int64_t diagonal) {
  return triangle(x, "tril",
                  [&](const Tensor& apart) { return le(apart, static_cast<double>(diagonal)); });
}

Tensor triu(const Tensor& x, int64_t diagonal) {
  return triangle(x, "triu",
                  [&](const Tensor& apart) { return ge(apart, static_cast<double>(diagonal)); });
}

Tensor tile(const Tensor& x, const Shape& counts) {
  check(counts.size() >= x.shape().size(), "tile", [&] {
    return str_cat("want a count for each dimension of ", to_string(x.shape()), ", got ",
                   to_string(counts));
  });
  const size_t extra = counts.size() - x.shape().size();
  Shape apart, wide, shape;  // (1, n) for each dimension, (count, n), and count * n
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t size = i < extra ? 1 : x.shape()[i - extra];
    apart.insert(apart.end(), {1, size});
    wide.insert(wide.end(), {counts[i], size});
    shape.push_back(counts[i] * size);
  }
  return reshape(expand(reshape(x, apart), wide), shape);
}

Sorted sort(const Tensor& x, int64_t dim, bool descending) {
  const Tensor places = argsort(x, dim, descending);
  return {gather(x, dim, places), places};
}

Tensor argsort(const Tensor& x, int64_t dim, bool descending) {
  const int64_t axis = axis_of(x, dim, "sort");
  return order_of(x, axis, x.size(axis), descending);
}

Sorted topk(const Tensor& x, int64_t k, int64_t dim, bool largest) {
  const int64_t axis = axis_of(x, dim, "topk");
  check(k >= 0 && k <= x.size(axis), "topk", [&] {
    return str_cat("want a k from 0 to ", x.size(axis), ", dimension ", dim, " of ",
                   to_string(x.shape()), ", got ", k);
  });
  const Tensor places = order_of(x, axis, k, largest);
  return {gather(x, axis, places), places};
}

}  // namespace lockstep
