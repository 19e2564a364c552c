// cat, stack, and the ops that take a tensor apart again: see shape_ops.h.

#include <algorithm>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

namespace lockstep {

Tensor cat(std::span<const Tensor> tensors, int64_t dim) {
  check(!tensors.empty(), "cat", "want at least one tensor, got none");
  check(tensors[0].defined() && tensors[0].dim() > 0, "cat",
        "want tensors with dimensions; stack() joins scalars");
  const auto d = static_cast<size_t>(normalize_dim(dim, tensors[0].dim(), "cat"));
  Shape shape = tensors[0].shape();
  std::vector<int64_t> lengths;
  shape[d] = 0;
  for (const Tensor& tensor : tensors) {
    check_same("cat", tensors[0], tensor);
    Shape wanted = shape;
    if (tensor.dim() == static_cast<int64_t>(shape.size())) wanted[d] = tensor.shape()[d];
    check(tensor.shape() == wanted, "cat", [&] {
      return str_cat("want shapes that agree but for dimension ", d, ", got ",
                     to_string(tensors[0].shape()), " and ", to_string(tensor.shape()));
    });
    lengths.push_back(tensor.shape()[d]);
  }
  for (int64_t length : lengths) shape[d] += length;
  Tensor out = Tensor::empty(shape, tensors[0].options());
  const auto axis = static_cast<int64_t>(d);
  {
    NoGrad no_grad;
    int64_t start = 0;
    for (const Tensor& tensor : tensors) {
      narrow(out, axis, start, tensor.shape()[d]).copy_(tensor);
      start += tensor.shape()[d];
    }
  }
  return record("cat", out, tensors, [lengths, axis](const Tensor& g) {
    Tensors parts;
    int64_t start = 0;
    for (int64_t length : lengths) {
      parts.push_back(narrow(g, axis, start, length));
      start += length;
    }
    return parts;
  });
}

Tensor stack(std::span<const Tensor> tensors, int64_t dim) {
  check(!tensors.empty(), "stack", "want at least one tensor, got none");
  Tensors parts;
  for (const Tensor& tensor : tensors) parts.push_back(unsqueeze(tensor, dim));
  return cat(parts, dim);
}

std::vector<Tensor> split(const Tensor& x, const Shape& sizes, int64_t dim) {
  const int64_t size = x.size(dim);
  int64_t total = 0;
  bool negative = false;
  for (int64_t part : sizes) {
    total += part;
    negative = negative || part < 0;
  }
  check(!negative && total == size, "split", [&] {
    return str_cat("want sizes that add up to ", size, ", dimension ", dim, " of ",
                   to_string(x.shape()), ", got ", to_string(sizes));
  });
  Tensors parts;
  int64_t start = 0;
  for (int64_t part : sizes) {
    parts.push_back(narrow(x, dim, start, part));
    start += part;
  }
  return parts;
}

std::vector<Tensor> split(const Tensor& x, int64_t size, int64_t dim) {
  check(size > 0, "split", [&] { return str_cat("want a size over 0, got ", size); });
  Shape sizes;
  const int64_t whole = x.size(dim);
  for (int64_t start = 0; start < whole; start += size) {
    sizes.push_back(std::min(size, whole - start));
  }
  if (sizes.empty()) sizes.push_back(0);  // one empty piece of an empty tensor
  return split(x, sizes, dim);
}

std::vector<Tensor> chunk(const Tensor& x, int64_t count, int64_t dim) {
  check(count > 0, "chunk", [&] { return str_cat("want a count over 0, got ", count); });
  return split(x, std::max<int64_t>(1, (x.size(dim) + count - 1) / count), dim);
}

std::vector<Tensor> unbind(const Tensor& x, int64_t dim) {
  Tensors parts;
  for (int64_t i = 0; i < x.size(dim); ++i) parts.push_back(select(x, dim, i));
  return parts;
}

}  // namespace lockstep
