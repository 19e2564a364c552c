#include "lockstep/core/ops/indexing.h"

#include <algorithm>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/index.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

// x after all that views can do, and the tensors of places that are left, each with its dimension.
struct Looked {
  Tensor x;
  std::vector<size_t> dims;
  Tensors places;
};

const Tensor* tensor_of(const Index& index) { return std::get_if<Tensor>(&index.value); }

bool is_mask(const Index& index) {
  const Tensor* tensor = tensor_of(index);
  return tensor != nullptr && tensor->dtype() == DType::kBool;
}

// How many dimensions of x an index stands for.
int64_t taken(const Index& index) {
  if (std::holds_alternative<NewAxis>(index.value)) return 0;
  if (std::holds_alternative<Ellipsis>(index.value)) return 0;
  return is_mask(index) ? tensor_of(index)->dim() : 1;
}

Tensor cut(const Tensor& x, int64_t dim, const Slice& wanted) {
  const int64_t size = x.size(dim);
  check(wanted.step > 0, "index", [&] {
    return str_cat("want a step over 0 for dimension ", dim, ", got ", wanted.step,
                   "; flip() reverses");
  });
  const auto place = [size](int64_t i) {
    return std::clamp<int64_t>(i < 0 && i > -size ? i + size : i, 0, size);
  };
  const int64_t start = place(wanted.start);
  return slice(x, dim, start, std::max(start, place(wanted.end.value_or(size))), wanted.step);
}

// The places in [0, size).
Tensor wrapped(const Tensor& places, int64_t size, size_t dim) {
  check(places.dtype() == DType::kI64, "index", [&] {
    return std::string("want places of i64 or a mask of bool, got ").append(name(places.dtype()));
  });
  if (places.numel() == 0) return places;
  const int64_t low = min(places).item_i64();
  const int64_t high = max(places).item_i64();
  check(low >= -size && high < size, "index", [&] {
    return str_cat("want places from ", -size, " to ", size - 1, " for dimension ", dim,
                   ", got some from ", low, " to ", high);
  });
  return low >= 0 ? places : where(lt(places, 0.0), places + static_cast<double>(size), places);
}

void add_mask(const Tensor& mask, size_t dim, Looked& out) {
  for (size_t i = 0; i < mask.shape().size(); ++i) {
    check(mask.shape()[i] == out.x.shape()[dim + i], "index", [&] {
      return str_cat("want a mask of x's sizes from dimension ", dim, " on, got ",
                     to_string(mask.shape()), " for ", to_string(out.x.shape()));
    });
  }
  check(mask.dim() > 0, "index", "want a mask with dimensions, got a scalar");
  const Tensor places = nonzero(mask);  // (n, mask.dim())
  for (int64_t i = 0; i < mask.dim(); ++i) {
    out.dims.push_back(dim + static_cast<size_t>(i));
    out.places.push_back(select(places, 1, i));
  }
}

Looked look(const Tensor& x, std::span<const Index> indices) {
  int64_t named = 0;
  int64_t ellipses = 0;
  for (const Index& index : indices) {
    named += taken(index);
    ellipses += std::holds_alternative<Ellipsis>(index.value) ? 1 : 0;
  }
  check(named <= x.dim() && ellipses <= 1, "index", [&] {
    return str_cat("want at most ", x.dim(), " indices and one ellipsis for shape ",
                   to_string(x.shape()), ", got ", named, " and ", ellipses);
  });
  Looked out;
  out.x = x;
  int64_t dim = 0;  // of out.x
  for (const Index& index : indices) {
    if (const auto* place = std::get_if<int64_t>(&index.value)) {
      out.x = select(out.x, dim, *place);
    } else if (const auto* slice = std::get_if<Slice>(&index.value)) {
      out.x = cut(out.x, dim++, *slice);
    } else if (std::holds_alternative<NewAxis>(index.value)) {
      out.x = unsqueeze(out.x, dim++);
    } else if (std::holds_alternative<Ellipsis>(index.value)) {
      dim += x.dim() - named;
    } else if (const Tensor& tensor = *tensor_of(index); is_mask(index)) {
      add_mask(tensor, static_cast<size_t>(dim), out);
      dim += tensor.dim();
    } else {
      out.dims.push_back(static_cast<size_t>(dim));
      out.places.push_back(wrapped(tensor, out.x.size(dim), static_cast<size_t>(dim)));
      ++dim;
    }
  }
  return out;
}

// x with the dimensions that places are for beside each other, from `first` on: where they stand if
// nothing stands between them, else in front.
Tensor gathered_dims(const Looked& looked, size_t& first) {
  const size_t count = looked.dims.size();
  first = looked.dims.front();
  if (looked.dims.back() - first == count - 1) return looked.x;
  Shape order;
  for (size_t d : looked.dims) order.push_back(static_cast<int64_t>(d));
  for (int64_t d = 0; d < looked.x.dim(); ++d) {
    if (std::find(order.begin(), order.begin() + static_cast<int64_t>(count), d) ==
        order.begin() + static_cast<int64_t>(count)) {
      order.push_back(d);
    }
  }
  first = 0;
  return permute(looked.x, order);
}

Tensor pick(const Looked& looked) {
  size_t first = 0;
  const Tensor x = gathered_dims(looked, first);
  Shape common;
  for (const Tensor& places : looked.places) {
    common = broadcast_shapes(common, places.shape(), "index");
  }
  // The dimensions as one, and the places in it.
  int64_t size = 1;
  Tensor flat = Tensor::zeros(common, {DType::kI64, x.device()});
  for (size_t i = 0; i < looked.places.size(); ++i) {
    const int64_t step = x.shape()[first + i];
    size *= step;
    flat = flat * static_cast<double>(step) + looked.places[i];
  }
  Shape merged(x.shape().begin(), x.shape().begin() + static_cast<int64_t>(first));
  Shape result = merged;
  merged.push_back(size);
  result.insert(result.end(), common.begin(), common.end());
  for (size_t d = first + looked.places.size(); d < x.shape().size(); ++d) {
    merged.push_back(x.shape()[d]);
    result.push_back(x.shape()[d]);
  }
  const Tensor picked =
      index_select(reshape(x, merged), static_cast<int64_t>(first), reshape(flat, {flat.numel()}));
  return reshape(picked, result);
}

// Without tensors among the indices.
Tensor put_in_view(const Tensor& x, const std::vector<Index>& indices, const Tensor& value) {
  Tensor y;
  {
    const NoGrad no_grad;
    y = clone(x);
    Tensor part = look(y, indices).x;
    check(broadcast_shapes(part.shape(), value.shape(), "index_put") == part.shape(), "index_put",
          [&] {
            return str_cat("want a value that broadcasts to ", to_string(part.shape()), ", got ",
                           to_string(value.shape()));
          });
    part.copy_(value);
  }
  return record("index_put", y, {x, value}, [indices](const Tensor& g) {
    return Tensors{wants_gradient(0) ? put_in_view(g, indices, constant_like(g, 0)) : Tensor(),
                   wants_gradient(1) ? index(g, indices) : Tensor()};
  });
}

}  // namespace

Tensor index(const Tensor& x, std::span<const Index> indices) {
  const Looked looked = look(x, indices);
  return looked.places.empty() ? looked.x : pick(looked);
}

Tensor index_put(const Tensor& x, std::span<const Index> indices, const Tensor& value,
                 bool accumulate) {
  check_same("index_put", x, value);
  const bool has_tensor = std::any_of(indices.begin(), indices.end(),
                                      [](const Index& i) { return tensor_of(i) != nullptr; });
  if (!has_tensor && !accumulate) {
    return put_in_view(x, std::vector<Index>(indices.begin(), indices.end()), value);
  }
  // Where each element of x[indices] stands in x.
  const Tensor order = reshape(Tensor::arange(x.numel(), {DType::kI64, x.device()}), x.shape());
  const Tensor places = index(order, indices);
  check(broadcast_shapes(places.shape(), value.shape(), "index_put") == places.shape(), "index_put",
        [&] {
          return str_cat("want a value that broadcasts to ", to_string(places.shape()), ", got ",
                         to_string(value.shape()));
        });
  const Tensor flat = reshape(x, {x.numel()});
  const Tensor at = reshape(places, {places.numel()});
  const Tensor values = reshape(expand(value, places.shape()), {places.numel()});
  return reshape(accumulate ? scatter_add(flat, 0, at, values) : scatter(flat, 0, at, values),
                 x.shape());
}

}  // namespace lockstep
