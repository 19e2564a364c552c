#include "lockstep/core/ops/reduce.h"

#include <cmath>
#include <limits>

#include "lockstep/core/autocast.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/index.h"
#include "lockstep/core/ops/rearrange.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/kernels/reduce.h"
#include "lockstep/kernels/scan.h"
#include "lockstep/kernels/softmax.h"
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

template <class Kernel>
Tensor place(const Tensor& x, const Shape& dims, bool keepdim, std::string_view op) {
  const Reduced shape = reduced(x, dims, keepdim, op);
  check(shape.count > 0, op, [&] {
    return str_cat("want at least one element to choose from, got shape ", to_string(x.shape()));
  });
  Tensor out = Tensor::empty(shape.result, {DType::kI64, x.device()});
  launch<Kernel>(x.device(), x.view(),
                 alias(out, shape.kept, contiguous_strides(shape.kept), 0).view());
  return out;
}

// The values along `dim` at the places that place<Kernel>() finds.
template <class Kernel>
Extremes extremes(const Tensor& x, int64_t dim, bool keepdim, std::string_view op) {
  if (x.dim() == 0) {
    return extremes<Kernel>(reshape(x, {1}), dim, false, op);
  }
  const Tensor places = place<Kernel>(x, {dim}, true, op);
  const Tensor values = gather(x, dim, places);
  if (keepdim) return {values, places};
  return {squeeze(values, dim), squeeze(places, dim)};
}

// Whether the dimensions that stay (or those that go) are neighbours: x is then (before, these,
// after), which is written to `sides`.
bool around(bool staying, const Shape& shape, const Shape& kept, Shape& sides) {
  sides = {1, 1, 1};
  size_t side = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    const bool within = (kept[d] == shape[d]) == staying;
    if (within == (side != 1)) ++side;  // 0: before, 1: these, 2: after
    if (side > 2) return false;
    sides[side] *= shape[d];
  }
  return true;
}

// 16-bit floats as f32, others as they are.
Tensor widened(const Tensor& x) {
  return x.dtype() == DType::kF16 || x.dtype() == DType::kBF16 ? to(x, DType::kF32) : x;
}

// The square root, with gradient 0 at 0.
Tensor root(const Tensor& x) {
  Tensor y;
  {
    const NoGrad no_grad;
    y = sqrt(x);
  }
  return record("sqrt", y, {x}, [y = Saved::result(y)](const Tensor& g) {
    const Tensor value = y.get();
    const Tensor zero = eq(value, 0.0);
    return Tensors{where(zero, 0.0, g / where(zero, 1.0, value + value))};
  });
}

// Sums along `axis` from the front, or from the back.
Tensor running_sum(const Tensor& x, int64_t axis, bool reverse) {
  if (x.dim() == 0) return reshape(running_sum(reshape(x, {1}), 0, reverse), {});
  Tensor y = empty_like(x, is_floating(x.dtype()) ? x.dtype() : DType::kI64);
  launch<kernels::CumSum>(x.device(), x.view(), y.view(), axis, reverse);
  return record("cumsum", y, {x}, [axis, reverse](const Tensor& g) {
    return Tensors{running_sum(g, axis, !reverse)};
  });
}

// Along the last dimension: each element's product of all before it (or after it), by doubling.
Tensor products_before(const Tensor& x, bool after) {
  const int64_t n = x.size(-1);
  const auto shifted = [&](const Tensor& t, int64_t by) {
    const Tensor kept = narrow(t, -1, after ? by : 0, n - by);
    return pad(kept, after ? Shape{0, by} : Shape{by, 0}, PadMode::kConstant, 1);
  };
  Tensor product = shifted(x, 1);
  for (int64_t step = 1; step < n; step *= 2) product = product * shifted(product, step);
  return product;
}

// For each element the product of all others that are reduced with it, whatever is 0 among them.
Tensor products_of_others(const Tensor& x, const Shape& kept) {
  Shape order, moved_shape;
  int64_t count = 1;
  for (int pass : {0, 1}) {  // dimensions that stay, then those that go
    for (size_t d = 0; d < kept.size(); ++d) {
      if ((kept[d] != x.shape()[d]) != (pass == 1)) continue;
      order.push_back(static_cast<int64_t>(d));
      moved_shape.push_back(x.shape()[d]);
      if (pass == 1) count *= x.shape()[d];
    }
  }
  const Tensor lines = reshape(permute(x, order), {x.numel() / std::max<int64_t>(count, 1), count});
  const Tensor others = products_before(lines, false) * products_before(lines, true);
  Shape back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return permute(reshape(others, moved_shape), back);
}

}  // namespace

Tensor sum(const Tensor& x_in, const Shape& dims, bool keepdim) {
  const Tensor x = autocast_f32(x_in);
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
  const Reduced shape = reduced(x, dims, keepdim, "var");
  const auto divisor = static_cast<double>(std::max<int64_t>(shape.count - correction, 0));
  Shape sides;
  if (shape.count == 0 || !around(true, x.shape(), shape.kept, sides)) {
    const Tensor wide = widened(x);
    return to(sum(square(wide - mean(wide, dims, true)), dims, keepdim) / divisor, x.dtype());
  }
  Tensor out;
  {
    const NoGrad no_grad;
    const Tensor lines = reshape(x, sides);
    const TensorOptions options = {x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32,
                                   x.device()};
    const Tensor middle = Tensor::empty({sides[1]}, options);
    Tensor deviations = Tensor::empty({sides[1]}, options);
    launch<kernels::BatchNormStats>(x.device(), lines.view(), middle.view(), deviations.view());
    deviations.div_(divisor);
    out = reshape(to(deviations, x.dtype()), shape.result);
  }
  return record("var", out, {x}, [x = Saved(x), dims, divisor, kept = shape.kept](const Tensor& g) {
    const Tensor wide = widened(x.get());
    const Tensor slope = (wide - mean(wide, dims, true)) * (2 / divisor);
    return Tensors{to(widened(reshape(g, kept)) * slope, g.dtype())};
  });
}

Tensor std(const Tensor& x, const Shape& dims, int64_t correction, bool keepdim) {
  check(is_floating(x.dtype()), "std", "want a floating dtype; convert with to()");
  return to(root(var(widened(x), dims, correction, keepdim)), x.dtype());
}

Tensor max(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme<kernels::Max>(x, dims, keepdim, "max");
}

Tensor min(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme<kernels::Min>(x, dims, keepdim, "min");
}

Tensor argmax(const Tensor& x, int64_t dim, bool keepdim) {
  return place<kernels::ArgMax>(x, {dim}, keepdim, "argmax");
}

Tensor argmin(const Tensor& x, int64_t dim, bool keepdim) {
  return place<kernels::ArgMin>(x, {dim}, keepdim, "argmin");
}

Tensor argmax(const Tensor& x) { return place<kernels::ArgMax>(x, {}, false, "argmax"); }
Tensor argmin(const Tensor& x) { return place<kernels::ArgMin>(x, {}, false, "argmin"); }

Extremes max_with_indices(const Tensor& x, int64_t dim, bool keepdim) {
  return extremes<kernels::ArgMax>(x, dim, keepdim, "max_with_indices");
}

Extremes min_with_indices(const Tensor& x, int64_t dim, bool keepdim) {
  return extremes<kernels::ArgMin>(x, dim, keepdim, "min_with_indices");
}

Tensor prod(const Tensor& x, const Shape& dims, bool keepdim) {
  const Reduced shape = reduced(x, dims, keepdim, "prod");
  const DType dtype = is_floating(x.dtype()) ? x.dtype() : DType::kI64;
  Tensor out = Tensor::empty(shape.result, {dtype, x.device()});
  launch<kernels::Prod>(x.device(), x.view(),
                        alias(out, shape.kept, contiguous_strides(shape.kept), 0).view());
  return record("prod", out, {x},
                [x = Saved(x), y = Saved::result(out), kept = shape.kept](const Tensor& g) {
                  const Tensor in = x.get();
                  const Tensor wide_g = reshape(g, kept);
                  if (all(in).item() != 0) return Tensors{wide_g * (reshape(y.get(), kept) / in)};
                  return Tensors{wide_g * products_of_others(in, kept)};
                });
}

Tensor norm(const Tensor& x, double p, const Shape& dims, bool keepdim) {
  check(is_floating(x.dtype()) && p > 0, "norm", [&] {
    const std::string_view dtype = name(x.dtype());
    return str_cat("want a floating dtype and p > 0, got ", dtype, " and ", p);
  });
  const Tensor wide = widened(x);
  if (p == std::numeric_limits<double>::infinity()) {
    return max(abs(x), dims, keepdim);
  }
  if (p == 1) return sum(abs(x), dims, keepdim);
  if (p == 2 && x.device().is_cpu() && reduced(x, dims, keepdim, "norm").result.empty() &&
      !would_record({&x})) {
    const View all = x.view();
    const double squares = launch<kernels::L2NormSquared>(x.device(), std::span(&all, 1));
    return Tensor::scalar(std::sqrt(squares), x.options());
  }
  if (p == 2) return to(root(sum(square(wide), dims, keepdim)), x.dtype());
  const Tensor total = sum(pow(abs(wide), p), dims, keepdim);
  // At 0 the root has no slope; 1 stands in for it there.
  const Tensor zero = eq(total, 0.0);
  return to(where(zero, 0.0, pow(where(zero, 1.0, total), 1 / p)), x.dtype());
}

Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim) {
  check(is_floating(x.dtype()), "logsumexp", "want a floating dtype; convert with to()");
  const Reduced shape = reduced(x, dims, keepdim, "logsumexp");
  Tensor out;
  {
    const NoGrad no_grad;
    const Tensor wide = widened(x);
    Shape sides;
    if (shape.count == 0) {
      out = log(sum(wide, dims, keepdim));
    } else if (around(false, x.shape(), shape.kept, sides)) {
      out = Tensor::empty(shape.result, wide.options());
      launch<kernels::LogSumExp>(x.device(), reshape(wide, sides).view(),
                                 alias(out, {sides[0], 1, sides[2]}, {sides[2], 1, 1}, 0).view(),
                                 1);
    } else {
      const Tensor top = max(wide, dims, true);
      const Tensor shift = where(isfinite(top), top, 0.0);  // inf - inf is NaN
      out = log(sum(exp(wide - shift), dims, keepdim)) + reshape(shift, shape.result);
    }
    out = to(out, x.dtype());
  }
  return record("logsumexp", out, {x},
                [x = Saved(x), y = Saved::result(out), kept = shape.kept](const Tensor& g) {
                  const Tensor value = reshape(y.get(), kept);
                  constexpr double kNothing = -std::numeric_limits<double>::infinity();
                  // Elements that are all minus infinity have no share in a sum of nothing.
                  const Tensor shift = where(eq(value, kNothing), 0.0, value);
                  return Tensors{reshape(g, kept) * exp(x.get() - shift)};
                });
}

Tensor cumsum(const Tensor& x, int64_t dim) {
  return running_sum(x, normalize_dim(dim, std::max<int64_t>(x.dim(), 1), "cumsum"), false);
}

Tensor all(const Tensor& x, const Shape& dims, bool keepdim) {
  const NoGrad no_grad;
  return eq(sum(eq(x, 0.0), dims, keepdim), 0.0);
}

Tensor any(const Tensor& x, const Shape& dims, bool keepdim) {
  const NoGrad no_grad;
  return gt(sum(ne(x, 0.0), dims, keepdim), 0.0);
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
