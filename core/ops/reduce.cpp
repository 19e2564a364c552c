#include "lockstep/core/ops/reduce.h"

#include <limits>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/reduce.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

// What is left of a shape when some dimensions are reduced.
struct Reduced {
  Shape kept;         // reduced dimensions have size 1
  Shape result;       // as the caller wants it
  int64_t count = 1;  // elements that become one
};

Reduced reduced(const Tensor& x, const Shape& dims, bool keepdim, std::string_view op) {
  std::vector<bool> gone(x.shape().size(), dims.empty());
  for (int64_t dim : dims) {
    const auto d = static_cast<size_t>(normalize_dim(dim, x.dim(), op));
    if (d < gone.size()) gone[d] = true;
  }
  Reduced out;
  for (size_t i = 0; i < gone.size(); ++i) {
    const int64_t size = x.shape()[i];
    if (gone[i]) out.count *= size;
    out.kept.push_back(gone[i] ? 1 : size);
    if (!gone[i] || keepdim) out.result.push_back(out.kept.back());
  }
  return out;
}

template <class Kernel>
Tensor extreme(const Tensor& x, const Shape& dims, bool keepdim, const char* op) {
  const Reduced shape = reduced(x, dims, keepdim, op);
  check(shape.count > 0, op, [&] {
    return str_cat("want at least one element to choose from, got shape ", to_string(x.shape()));
  });
  Tensor out = Tensor::empty(shape.result, x.options());
  const Tensor y = alias(out, shape.kept, contiguous_strides(shape.kept), 0);
  launch<Kernel>(x.device(), x.view(), y.view());
  return record(op, out, {x}, [x = Saved(x), y = Saved(y), kept = shape.kept](const Tensor& g) {
    Tensor share;  // 1 / how often the extreme value occurs, at its places
    {
      NoGrad no_grad;
      const Tensor value = x.get();
      const Tensor hit = to(eq(value, y.get()), value.dtype());
      Shape axes;
      for (size_t i = 0; i < kept.size(); ++i) {
        if (kept[i] == 1) axes.push_back(static_cast<int64_t>(i));
      }
      share = axes.empty() ? hit : hit / sum(hit, axes, true);
    }
    return Tensors{reshape(g, kept) * share};
  });
}

}  // namespace

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim) {
  const Reduced shape = reduced(x, dims, keepdim, "sum");
  const DType dtype = is_floating(x.dtype()) ? x.dtype() : DType::kI64;
  Tensor out = Tensor::empty(shape.result, {dtype, x.device()});
  launch<kernels::Sum>(x.device(), x.view(),
                       alias(out, shape.kept, contiguous_strides(shape.kept), 0).view());
  return record("sum", out, {x}, [from = x.shape(), kept = shape.kept](const Tensor& g) {
    return Tensors{expand(reshape(g, kept), from)};
  });
}

Tensor mean(const Tensor& x, const Shape& dims, bool keepdim) {
  check(is_floating(x.dtype()), "mean", "want a floating dtype; convert with to()");
  const int64_t count = reduced(x, dims, keepdim, "mean").count;
  return sum(x, dims, keepdim) / static_cast<double>(count);
}

Tensor var(const Tensor& x, const Shape& dims, int64_t correction, bool keepdim) {
  check(is_floating(x.dtype()), "var", "want a floating dtype; convert with to()");
  const int64_t count = reduced(x, dims, keepdim, "var").count;
  return sum(square(x - mean(x, dims, true)), dims, keepdim) /
         static_cast<double>(std::max<int64_t>(count - correction, 0));
}

Tensor max(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme<kernels::Max>(x, dims, keepdim, "max");
}

Tensor min(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme<kernels::Min>(x, dims, keepdim, "min");
}

Tensor argmax(const Tensor& x, int64_t dim, bool keepdim) {
  const Reduced shape = reduced(x, {dim}, keepdim, "argmax");
  check(shape.count > 0, "argmax", [&] {
    return str_cat("want at least one element to choose from, got shape ", to_string(x.shape()));
  });
  Tensor out = Tensor::empty(shape.result, {DType::kI64, x.device()});
  launch<kernels::ArgMax>(x.device(), x.view(),
                          alias(out, shape.kept, contiguous_strides(shape.kept), 0).view());
  return out;
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  check(x.shape().size() >= shape.size(), "sum_to", [&] {
    return str_cat("want a shape that broadcasts to ", to_string(x.shape()), ", got ",
                   to_string(shape));
  });
  const size_t extra = x.shape().size() - shape.size();
  Shape dims;
  for (size_t i = 0; i < x.shape().size(); ++i) {
    if (i < extra || (shape[i - extra] == 1 && x.shape()[i] != 1)) {
      dims.push_back(static_cast<int64_t>(i));
    }
  }
  return dims.empty() ? reshape(x, shape) : reshape(sum(x, dims, true), shape);
}

}  // namespace lockstep
