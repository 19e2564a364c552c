#include "lockstep/core/ops/elementwise.h"

#include <cstddef>

#include "lockstep/core/autocast.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

bool equal(const Shape& a, const Shape& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

// A result in the memory order of the first operand that has its shape.
Tensor empty_result(const Shape& shape, DType dtype, const Tensor& a, const Tensor& b) {
  if (equal(a.shape(), shape)) return empty_like(a, dtype);
  if (equal(b.shape(), shape)) return empty_like(b, dtype);
  return Tensor::empty(shape, {dtype, a.device()});
}

Tensor empty_result(std::string_view op, DType dtype, const Tensor& a, const Tensor& b) {
  if (equal(a.shape(), b.shape())) return empty_like(a, dtype);
  return empty_result(broadcast_shapes(a.shape(), b.shape(), op), dtype, a, b);
}

// Whether the elements of x lie as those of `out`, which is dense, or x is one number.
bool fits_row(const TensorImpl& x, const TensorImpl& out) {
  return x.shape.empty() || (equal(x.strides, out.strides) && equal(x.shape, out.shape));
}

int64_t count(const TensorImpl& x) {
  int64_t n = 1;
  for (int64_t size : x.shape) n *= size;
  return n;
}

// A row of n elements that lie side by side, or of one as often as that.
View as_row(void* data, DType dtype, Device device, int64_t n, bool one) {
  return {data, dtype, device, {n}, {one && n != 1 ? 0 : 1}};
}

// Runs a kernel over operands that broadcast to `out`, a new tensor. Most lie in memory as it does,
// and then the kernel need not see of what shape they are: all is one row of n elements, or a
// number as often as that. On a few numbers it is such things that take time.
template <class Kernel, class... Operands>
void run(const Tensor& out, const Operands&... operands) {
  const TensorImpl& to = *out.impl();
  if ((fits_row(*operands.impl(), to) && ...)) {
    const int64_t n = count(to);
    const Device device = to.storage->device;
    const auto row = [&](const TensorImpl& x) {
      return as_row(x.data(), x.dtype, device, n, x.shape.empty());
    };
    launch<Kernel>(device, row(*operands.impl())..., row(to));
  } else {
    const Shape& shape = out.shape();
    launch<Kernel>(out.device(), operands.view().expanded(shape)..., out.view());
  }
}

template <class Op>
Tensor unary(const Tensor& x) {
  Tensor y = empty_like(x);
  run<kernels::Unary<Op>>(y, x);
  if (!would_record({&x})) return y;
  return record(Op::kName, y, {x},
                [saved_x = Op::kUsesX ? Saved(x) : Saved(),
                 saved_y = Op::kUsesY ? Saved::result(y) : Saved()](const Tensor& g) {
                  const Tensor in = saved_x.get();
                  const Tensor out = saved_y.get();
                  if (grad_enabled()) return Tensors{Op::vjp(g, in, out)};
                  Tensor gx = empty_like(g);
                  // What the rule does not use may be any tensor of the right shape.
                  run<kernels::UnaryVjp<Op>>(gx, g, Op::kUsesX ? in : g, Op::kUsesY ? out : g);
                  return Tensors{gx};
                });
}

template <class Op>
Tensor binary(const Tensor& a, const Tensor& b) {
  if (Autocast::is_enabled() && a.dtype() != b.dtype()) {
    const Tensor wide = autocast_wider(a, b);
    if (!wide.is_same(a)) return binary<Op>(wide, autocast_wider(b, a));
    if (const Tensor other = autocast_wider(b, a); !other.is_same(b)) return binary<Op>(a, other);
  }
  check_same(Op::kName, a, b);
  Tensor y = empty_result(Op::kName, a.dtype(), a, b);
  run<kernels::Binary<Op>>(y, a, b);
  if (!would_record({&a, &b})) return y;
  return record(Op::kName, y, {a, b},
                [saved_a = Op::kUsesOperands ? Saved(a) : Saved(),
                 saved_b = Op::kUsesOperands ? Saved(b) : Saved(),
                 saved_y = Op::kUsesY ? Saved::result(y) : Saved()](const Tensor& g) {
                  const Tensor left = saved_a.get();
                  const Tensor right = saved_b.get();
                  const Tensor out = saved_y.get();
                  // The engine sums a gradient back to the shape of a broadcast operand.
                  if (grad_enabled()) {
                    return Tensors{wants_gradient(0) ? Op::vjp_a(g, left, right, out) : Tensor(),
                                   wants_gradient(1) ? Op::vjp_b(g, left, right, out) : Tensor()};
                  }
                  const Tensor& a_in = Op::kUsesOperands ? left : g;
                  const Tensor& b_in = Op::kUsesOperands ? right : g;
                  const Tensor& y_in = Op::kUsesY ? out : g;
                  Tensors gradients(2);
                  if (wants_gradient(0)) {
                    gradients[0] = empty_like(g);
                    run<kernels::BinaryVjpA<Op>>(gradients[0], g, a_in, b_in, y_in);
                  }
                  if (wants_gradient(1)) {
                    gradients[1] = empty_like(g);
                    run<kernels::BinaryVjpB<Op>>(gradients[1], g, a_in, b_in, y_in);
                  }
                  return gradients;
                });
}

// x and a number, in this order or the other. Without a graph the number needs no tensor: making
// one took a third of the time on a few numbers.
template <class Op, bool number_first>
Tensor binary(const Tensor& x, double value) {
  if (x.defined() && x.device().is_cpu() && x.is_contiguous() && !would_record({&x})) {
    const Tensor y = empty_like(x);
    const Device device = x.device();
    const DType dtype = x.dtype();
    const int64_t n = count(*x.impl());
    alignas(8) std::byte memory[8];
    kernels::Fill::cpu(View{memory, dtype, device, {}, {}}, value);
    const View row = as_row(x.impl()->data(), dtype, device, n, false);
    const View number = as_row(memory, dtype, device, n, true);
    launch<kernels::Binary<Op>>(device, number_first ? number : row, number_first ? row : number,
                                as_row(y.impl()->data(), dtype, device, n, false));
    return y;
  }
  const Tensor number = constant_like(x, value);
  return number_first ? binary<Op>(number, x) : binary<Op>(x, number);
}

template <class Op>
Tensor compare(const Tensor& a, const Tensor& b) {
  check_same(Op::kName, a, b);
  Tensor y = empty_result(Op::kName, DType::kBool, a, b);
  run<kernels::Compare<Op>>(y, a, b);
  return y;
}

}  // namespace

#define LOCKSTEP_DEFINE(Op, function) \
  Tensor function(const Tensor& x) { return unary<kernels::Op>(x); }
LOCKSTEP_UNARY_OPS(LOCKSTEP_DEFINE)
#undef LOCKSTEP_DEFINE

#define LOCKSTEP_DEFINE(Op, function)                                                     \
  Tensor function(const Tensor& a, const Tensor& b) { return binary<kernels::Op>(a, b); } \
  Tensor function(const Tensor& a, double b) { return binary<kernels::Op, false>(a, b); } \
  Tensor function(double a, const Tensor& b) { return binary<kernels::Op, true>(b, a); }
LOCKSTEP_BINARY_OPS(LOCKSTEP_DEFINE)
#undef LOCKSTEP_DEFINE
#define LOCKSTEP_DEFINE(Op, function)                                                      \
  Tensor function(const Tensor& a, const Tensor& b) { return compare<kernels::Op>(a, b); } \
  Tensor function(const Tensor& a, double b) { return function(a, constant_like(a, b)); }  \
  Tensor function(double a, const Tensor& b) { return function(constant_like(b, a), b); }
LOCKSTEP_COMPARE_OPS(LOCKSTEP_DEFINE)
#undef LOCKSTEP_DEFINE

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  check_same("where", a, b);
  check(condition.dtype() == DType::kBool && condition.device() == a.device(), "where",
        "want a condition of dtype bool on the operands' device");
  const Shape shape =
      broadcast_shapes(condition.shape(), broadcast_shapes(a.shape(), b.shape(), "where"), "where");
  Tensor y = empty_result(shape, a.dtype(), a, b);
  run<kernels::Where>(y, condition, a, b);
  return record("where", y, {a, b}, [condition = Saved(condition)](const Tensor& g) {
    const Tensor c = condition.get();
    return Tensors{wants_gradient(0) ? where(c, g, 0.0) : Tensor(),
                   wants_gradient(1) ? where(c, 0.0, g) : Tensor()};
  });
}

Tensor where(const Tensor& condition, const Tensor& a, double b) {
  return where(condition, a, constant_like(a, b));
}

Tensor where(const Tensor& condition, double a, const Tensor& b) {
  return where(condition, constant_like(b, a), b);
}

Tensor clamp(const Tensor& x, double low, double high) {
  check(low <= high, "clamp",
        [&] { return str_cat("want low <= high, got ", low, " and ", high); });
  return where(lt(x, low), constant_like(x, low), where(gt(x, high), constant_like(x, high), x));
}

Tensor clamp_min(const Tensor& x, double low) {
  return where(lt(x, low), constant_like(x, low), x);
}

Tensor clamp_max(const Tensor& x, double high) {
  return where(gt(x, high), constant_like(x, high), x);
}

namespace {

void check_bool(std::string_view op, const Tensor& x) {
  check(x.dtype() == DType::kBool, op, [&] {
    return std::string("want a tensor of bool, got ").append(name(x.dtype())) +
           "; compare it with something first";
  });
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

// The truth values are numbers 0 and 1 to the kernels of every dtype.
Tensor logical_and(const Tensor& a, const Tensor& b) {
  check_same("logical_and", a, b);
  check_bool("logical_and", a);
  return minimum(a, b);
}

Tensor logical_or(const Tensor& a, const Tensor& b) {
  check_same("logical_or", a, b);
  check_bool("logical_or", a);
  return maximum(a, b);
}

Tensor logical_not(const Tensor& x) {
  check_bool("logical_not", x);
  return eq(x, 0.0);
}

Tensor isnan(const Tensor& x) { return ne(x, x); }

Tensor isinf(const Tensor& x) {
  check(is_floating(x.dtype()), "isinf", "want a floating dtype");
  const NoGrad no_grad;
  return eq(abs(x), kInfinity);
}

Tensor isfinite(const Tensor& x) {
  check(is_floating(x.dtype()), "isfinite", "want a floating dtype");
  const NoGrad no_grad;
  return lt(abs(x), kInfinity);
}

Tensor constant_like(const Tensor& x, double value) { return Tensor::scalar(value, x.options()); }

}  // namespace lockstep
