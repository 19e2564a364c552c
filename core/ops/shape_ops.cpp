#include "lockstep/core/ops/shape_ops.h"

#include <algorithm>

#include "lockstep/core/autograd.h"
#include "lockstep/core/engine.h"
#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/text.h"
#include "lockstep/kernels/transfer.h"

namespace lockstep {
namespace {

// The strides of `shape` over the memory of x, if strides can say it: dimensions of x are grouped
// into runs that are dense, and each run is cut anew.
bool view_strides(const Tensor& x, const Shape& shape, Strides& out) {
  const Shape& from = x.shape();
  const Strides& strides = x.strides();
  out = contiguous_strides(shape);
  if (x.numel() == 0) return true;
  size_t next = shape.size();
  for (size_t i = from.size(); i-- > 0;) {
    int64_t run = from[i];
    const int64_t step = strides[i];
    while (i > 0 && (from[i - 1] == 1 || strides[i - 1] == step * run)) run *= from[--i];
    if (run == 1) continue;
    int64_t done = 1;
    while (next > 0 && (done < run || shape[next - 1] == 1)) {
      out[--next] = step * done;
      done *= shape[next];
    }
    if (done != run) return false;
  }
  while (next > 0 && shape[next - 1] == 1) out[--next] = 1;
  return next == 0;
}

Shape infer_shape(const Tensor& x, const Shape& shape) {
  Shape out = shape;
  const auto unknown = std::find(out.begin(), out.end(), -1);
  const auto message = [&] {
    return str_cat("want a shape of ", x.numel(), " elements for ", to_string(x.shape()), ", got ",
                   to_string(shape));
  };
  if (unknown != out.end()) {
    *unknown = 1;
    const int64_t rest = numel(out, "reshape");
    check(rest > 0 && x.numel() % rest == 0, "reshape", message);
    *unknown = x.numel() / rest;
  }
  check(numel(out, "reshape") == x.numel(), "reshape", message);
  return out;
}

size_t dim_of(const Tensor& x, int64_t dim, std::string_view op) {
  const auto d = static_cast<size_t>(normalize_dim(dim, x.dim(), op));
  check(d < x.shape().size(), op, "want a tensor with dimensions, got a scalar");
  return d;
}

// Copies x into a new tensor with the given strides, which must be dense.
Tensor copy_with_strides(const Tensor& x, const Strides& strides, std::string_view op) {
  Tensor out = Tensor::empty(x.shape(), x.options());
  out.impl()->strides = strides;
  launch<kernels::Copy>(x.device(), x.view(), out.view());
  return record(op, out, {x}, [](const Tensor& g) { return Tensors{g}; });
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  const Shape wanted = infer_shape(x, shape);
  Strides strides;
  if (!view_strides(x, wanted, strides)) return reshape(contiguous(x), wanted);
  return record("reshape", alias(x, wanted, strides, x.impl()->offset), {x},
                [from = x.shape()](const Tensor& g) { return Tensors{reshape(g, from)}; });
}

Tensor view(const Tensor& x, const Shape& shape) {
  const Shape wanted = infer_shape(x, shape);
  Strides strides;
  check(view_strides(x, wanted, strides), "view", [&] {
    return str_cat("strides cannot say shape ", to_string(wanted), " of a tensor of shape ",
                   to_string(x.shape()), " and strides ", to_string(x.strides()),
                   "; use reshape(), which copies");
  });
  return reshape(x, wanted);
}

Tensor permute(const Tensor& x, const Shape& dims) {
  const auto message = [&] {
    return str_cat("want each dimension of ", to_string(x.shape()), " once, got ", to_string(dims));
  };
  check(dims.size() == x.shape().size(), "permute", message);
  Shape shape(dims.size());
  Strides strides(dims.size());
  Shape inverse(dims.size(), -1);
  for (size_t i = 0; i < dims.size(); ++i) {
    const size_t d = dim_of(x, dims[i], "permute");
    check(inverse[d] == -1, "permute", message);
    inverse[d] = static_cast<int64_t>(i);
    shape[i] = x.shape()[d];
    strides[i] = x.strides()[d];
  }
  return record("permute", alias(x, shape, strides, x.impl()->offset), {x},
                [inverse](const Tensor& g) { return Tensors{permute(g, inverse)}; });
}

Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1) {
  Shape dims(x.shape().size());
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i);
  std::swap(dims[dim_of(x, dim0, "transpose")], dims[dim_of(x, dim1, "transpose")]);
  return permute(x, dims);
}

Tensor expand(const Tensor& x, const Shape& wanted) {
  const Shape& from = x.shape();
  Shape shape = wanted;
  for (size_t i = 0; i < from.size() && from.size() <= shape.size(); ++i) {
    int64_t& to = shape[shape.size() - from.size() + i];
    if (to == -1) to = from[i];
  }
  const auto fits = [&] {
    if (shape.size() < from.size()) return false;
    for (size_t i = 0; i < from.size(); ++i) {
      const int64_t to = shape[shape.size() - from.size() + i];
      if (from[i] != to && from[i] != 1) return false;
    }
    return true;
  };
  check(fits(), "expand", [&] {
    return str_cat("want a shape that broadcasts to ", to_string(shape), ", got ", to_string(from));
  });
  if (shape == from) return x;
  Strides strides(shape.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] != 1) strides[shape.size() - from.size() + i] = x.strides()[i];
  }
  // The engine sums the gradient back to x's shape.
  return record("expand", alias(x, shape, strides, x.impl()->offset), {x},
                [](const Tensor& g) { return Tensors{g}; });
}

Tensor squeeze(const Tensor& x, int64_t dim) {
  const size_t d = dim_of(x, dim, "squeeze");
  if (x.shape()[d] != 1) return x;
  Shape shape = x.shape();
  shape.erase(shape.begin() + static_cast<int64_t>(d));
  return reshape(x, shape);
}

Tensor squeeze(const Tensor& x) {
  Shape shape;
  for (int64_t size : x.shape()) {
    if (size != 1) shape.push_back(size);
  }
  return reshape(x, shape);
}

Tensor unsqueeze(const Tensor& x, int64_t dim) {
  Shape shape = x.shape();
  shape.insert(shape.begin() + normalize_dim(dim, x.dim() + 1, "unsqueeze"), 1);
  return reshape(x, shape);
}

Tensor flatten(const Tensor& x, int64_t start_dim) {
  if (x.dim() == 0) return reshape(x, {1});
  const size_t start = dim_of(x, start_dim, "flatten");
  Shape shape(x.shape().begin(), x.shape().begin() + static_cast<int64_t>(start));
  int64_t rest = 1;
  for (size_t i = start; i < x.shape().size(); ++i) rest *= x.shape()[i];
  shape.push_back(rest);
  return reshape(x, shape);
}

Tensor movedim(const Tensor& x, int64_t from, int64_t to) {
  const size_t source = dim_of(x, from, "movedim");
  const size_t target = dim_of(x, to, "movedim");
  Shape dims;
  for (size_t i = 0; i < x.shape().size(); ++i) {
    if (i != source) dims.push_back(static_cast<int64_t>(i));
  }
  dims.insert(dims.begin() + static_cast<int64_t>(target), static_cast<int64_t>(source));
  return permute(x, dims);
}

Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step) {
  const size_t d = dim_of(x, dim, "slice");
  const int64_t size = x.shape()[d];
  check(0 <= start && start <= end && end <= size && step > 0, "slice", [&] {
    return str_cat("want 0 <= start <= end <= ", size, " and a step over 0 for dimension ", d,
                   " of ", to_string(x.shape()), ", got ", start, ":", end, ":", step);
  });
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape[d] = (end - start + step - 1) / step;
  strides[d] *= step;
  const int64_t offset = x.impl()->offset + (shape[d] == 0 ? 0 : start * x.strides()[d]);
  return record("slice", alias(x, shape, strides, offset), {x},
                [from = x.shape(), d, start, end, step](const Tensor& g) {
                  const auto axis = static_cast<int64_t>(d);
                  // Many slices of one tensor are added to one gradient, not each to zeros of its
                  // size first.
                  if (const Tensor sum = engine::open_sum(0);
                      sum.defined() && sum.shape() == from) {
                    slice(sum, axis, start, end, step).add_(g);
                    return Tensors{Tensor()};
                  }
                  return Tensors{slice_scatter_zeros(g, from, axis, start, step)};
                });
}

Tensor slice_scatter_zeros(const Tensor& x, const Shape& shape, int64_t dim, int64_t start,
                           int64_t step) {
  Tensor out = Tensor::zeros(shape, x.options());
  const int64_t length = x.size(dim);
  const int64_t end = length == 0 ? start : start + (length - 1) * step + 1;
  {
    NoGrad no_grad;
    slice(out, dim, start, end, step).copy_(x);
  }
  return record("slice_scatter_zeros", out, {x}, [dim, start, end, step](const Tensor& g) {
    return Tensors{slice(g, dim, start, end, step)};
  });
}

namespace {

// A zero tensor of `shape` with x on a diagonal: the gradient of diagonal().
Tensor diagonal_scatter_zeros(const Tensor& x, const Shape& shape, int64_t offset, int64_t dim0,
                              int64_t dim1) {
  Tensor out = Tensor::zeros(shape, x.options());
  {
    NoGrad no_grad;
    diagonal(out, offset, dim0, dim1).copy_(x);
  }
  return record("diagonal_scatter_zeros", out, {x}, [offset, dim0, dim1](const Tensor& g) {
    return Tensors{diagonal(g, offset, dim0, dim1)};
  });
}

}  // namespace

Tensor diagonal(const Tensor& x, int64_t offset, int64_t dim0, int64_t dim1) {
  const size_t rows = dim_of(x, dim0, "diagonal");
  const size_t columns = dim_of(x, dim1, "diagonal");
  check(rows != columns, "diagonal", [&] {
    return str_cat("want two different dimensions of ", to_string(x.shape()), ", got ", dim0,
                   " and ", dim1);
  });
  const int64_t down = std::max<int64_t>(-offset, 0);
  const int64_t right = std::max<int64_t>(offset, 0);
  const int64_t length =
      std::max<int64_t>(0, std::min(x.shape()[rows] - down, x.shape()[columns] - right));
  Shape shape;
  Strides strides;
  for (size_t i = 0; i < x.shape().size(); ++i) {
    if (i == rows || i == columns) continue;
    shape.push_back(x.shape()[i]);
    strides.push_back(x.strides()[i]);
  }
  shape.push_back(length);
  strides.push_back(x.strides()[rows] + x.strides()[columns]);
  const int64_t start = length == 0 ? 0 : down * x.strides()[rows] + right * x.strides()[columns];
  return record("diagonal", alias(x, shape, strides, x.impl()->offset + start), {x},
                [from = x.shape(), offset, dim0, dim1](const Tensor& g) {
                  return Tensors{diagonal_scatter_zeros(g, from, offset, dim0, dim1)};
                });
}

Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  const int64_t size = x.size(dim);
  check(0 <= start && 0 <= length && start <= size - length, "narrow", [&] {
    return str_cat("want a start and a length within ", size, " of dimension ", dim, " of ",
                   to_string(x.shape()), ", got ", start, " and ", length);
  });
  return slice(x, dim, start, start + length);
}

Tensor select(const Tensor& x, int64_t dim, int64_t index) {
  const int64_t size = x.size(dim);
  check(-size <= index && index < size, "select", [&] {
    return str_cat("want an index from ", -size, " to ", size - 1, " for dimension ", dim, " of ",
                   to_string(x.shape()), ", got ", index);
  });
  return squeeze(narrow(x, dim, index < 0 ? index + size : index, 1), dim);
}

Tensor contiguous(const Tensor& x) {
  return x.is_contiguous() ? x : copy_with_strides(x, contiguous_strides(x.shape()), "contiguous");
}

Tensor channels_last(const Tensor& x) {
  check(x.dim() == 4, "channels_last",
        [&] { return str_cat("want a tensor (N, C, H, W), got shape ", to_string(x.shape())); });
  return x.is_channels_last()
             ? x
             : copy_with_strides(x, channels_last_strides(x.shape()), "channels_last");
}

Tensor clone(const Tensor& x) { return copy_with_strides(x, empty_like(x).strides(), "clone"); }

Tensor to(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor out = empty_like(x, dtype);
  launch<kernels::Copy>(x.device(), x.view(), out.view());
  if (!is_floating(dtype)) return out;
  return record("to", out, {x},
                [from = x.dtype()](const Tensor& g) { return Tensors{to(g, from)}; });
}

Tensor to(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  require_device(device, "to");
  Tensor out = Tensor::empty(x.shape(), {x.dtype(), device});
  {
    NoGrad no_grad;
    const Tensor dense = contiguous(x);
    const View from = dense.view();
    if (from.device.is_cpu() && is_pinned(from.data)) {
      transfer_async(from, out.view(), current_stream(device));
    } else {
      transfer(from, out.view());
    }
  }
  return record("to", out, {x},
                [from = x.device()](const Tensor& g) { return Tensors{to(g, from)}; });
}

Tensor pin_memory(const Tensor& x) {
  check(x.device().is_cpu(), "pin_memory", [&] {
    return str_cat("want a tensor on cpu, got one of shape ", to_string(x.shape()), " on ",
                   x.device().name());
  });
  const bool is_there = is_pinned(x.view().data) && x.is_contiguous();
  if (is_there || device_count(DeviceType::kCuda) == 0) return x;
  NoGrad no_grad;
  Tensor out =
      Tensor::wrap(allocate_pinned(static_cast<size_t>(x.nbytes())), x.shape(), x.options());
  out.copy_(x);
  return out;
}

}  // namespace lockstep
