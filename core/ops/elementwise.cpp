#include "lockstep/core/ops/elementwise.h"

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

// A result of `shape` in the memory order of the first operand that has that shape.
Tensor empty_result(const Shape& shape, DType dtype, std::initializer_list<Tensor> operands) {
  for (const Tensor& operand : operands) {
    if (operand.shape() == shape) return empty_like(operand, dtype);
  }
  return Tensor::empty(shape, {dtype, operands.begin()->device()});
}

View expanded(const Tensor& x, const Shape& shape) {
  NoGrad no_grad;
  return expand(x, shape).view();
}

template <class Op>
Tensor unary(const Tensor& x) {
  Tensor y = empty_like(x);
  launch<kernels::Unary<Op>>(x.device(), x.view(), y.view());
  const Saved saved_x = Op::kUsesX ? Saved(x) : Saved(Tensor());
  const Saved saved_y = Op::kUsesY ? Saved::result(y) : Saved(Tensor());
  return record(Op::kName, y, {x}, [saved_x, saved_y](const Tensor& g) {
    const Tensor in = saved_x.get();
    const Tensor out = saved_y.get();
    if (grad_enabled()) return Tensors{Op::vjp(g, in, out)};
    Tensor gx = empty_like(g);
    // What the rule does not use may be any view of the right shape.
    launch<kernels::UnaryVjp<Op>>(g.device(), g.view(), (Op::kUsesX ? in : g).view(),
                                  (Op::kUsesY ? out : g).view(), gx.view());
    return Tensors{gx};
  });
}

template <class Op>
Tensor binary(const Tensor& a, const Tensor& b) {
  check_same(Op::kName, a, b);
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), Op::kName);
  Tensor y = empty_result(shape, a.dtype(), {a, b});
  launch<kernels::Binary<Op>>(a.device(), expanded(a, shape), expanded(b, shape), y.view());
  const Saved saved_a = Op::kUsesOperands ? Saved(a) : Saved(Tensor());
  const Saved saved_b = Op::kUsesOperands ? Saved(b) : Saved(Tensor());
  const Saved saved_y = Op::kUsesY ? Saved::result(y) : Saved(Tensor());
  return record(Op::kName, y, {a, b}, [saved_a, saved_b, saved_y](const Tensor& g) {
    const Tensor left = saved_a.get();
    const Tensor right = saved_b.get();
    const Tensor out = saved_y.get();
    // The engine sums a gradient back to the shape of a broadcast operand.
    if (grad_enabled()) {
      return Tensors{wants_gradient(0) ? Op::vjp_a(g, left, right, out) : Tensor(),
                     wants_gradient(1) ? Op::vjp_b(g, left, right, out) : Tensor()};
    }
    const View a_view = Op::kUsesOperands ? expanded(left, g.shape()) : g.view();
    const View b_view = Op::kUsesOperands ? expanded(right, g.shape()) : g.view();
    const View y_view = (Op::kUsesY ? out : g).view();
    Tensors gradients(2);
    if (wants_gradient(0)) {
      gradients[0] = empty_like(g);
      launch<kernels::BinaryVjpA<Op>>(g.device(), g.view(), a_view, b_view, y_view,
                                      gradients[0].view());
    }
    if (wants_gradient(1)) {
      gradients[1] = empty_like(g);
      launch<kernels::BinaryVjpB<Op>>(g.device(), g.view(), a_view, b_view, y_view,
                                      gradients[1].view());
    }
    return gradients;
  });
}

template <class Op>
Tensor compare(const Tensor& a, const Tensor& b) {
  check_same(Op::kName, a, b);
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), Op::kName);
  Tensor y = empty_result(shape, DType::kBool, {a, b});
  launch<kernels::Compare<Op>>(a.device(), expanded(a, shape), expanded(b, shape), y.view());
  return y;
}

}  // namespace

#define LOCKSTEP_DEFINE(Op, function) \
  Tensor function(const Tensor& x) { return unary<kernels::Op>(x); }
LOCKSTEP_UNARY_OPS(LOCKSTEP_DEFINE)
#undef LOCKSTEP_DEFINE

#define LOCKSTEP_DEFINE_TWO(implementation, Op, function)                                         \
  Tensor function(const Tensor& a, const Tensor& b) { return implementation<kernels::Op>(a, b); } \
  Tensor function(const Tensor& a, double b) { return function(a, constant_like(a, b)); }         \
  Tensor function(double a, const Tensor& b) { return function(constant_like(b, a), b); }
#define LOCKSTEP_DEFINE(Op, function) LOCKSTEP_DEFINE_TWO(binary, Op, function)
LOCKSTEP_BINARY_OPS(LOCKSTEP_DEFINE)
#undef LOCKSTEP_DEFINE
#define LOCKSTEP_DEFINE(Op, function) LOCKSTEP_DEFINE_TWO(compare, Op, function)
LOCKSTEP_COMPARE_OPS(LOCKSTEP_DEFINE)
#undef LOCKSTEP_DEFINE
#undef LOCKSTEP_DEFINE_TWO

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  check_same("where", a, b);
  check(condition.dtype() == DType::kBool && condition.device() == a.device(), "where",
        "want a condition of dtype bool on the operands' device");
  const Shape shape =
      broadcast_shapes(condition.shape(), broadcast_shapes(a.shape(), b.shape(), "where"), "where");
  Tensor y = empty_result(shape, a.dtype(), {a, b});
  launch<kernels::Where>(a.device(), expanded(condition, shape), expanded(a, shape),
                         expanded(b, shape), y.view());
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

Tensor constant_like(const Tensor& x, double value) { return Tensor::scalar(value, x.options()); }

namespace {

// Writes op(x, other) into x's memory. In the graph x becomes the new result instead, in memory of
// its own, so that what the graph saved of the old one stays.
template <class Op>
void in_place(const char* op, Tensor& x, const Tensor& other) {
  check_same(op, x, other);
  check(broadcast_shapes(x.shape(), other.shape(), op) == x.shape(), op, [&] {
    return str_cat("want an operand that broadcasts to ", to_string(x.shape()), ", got ",
                   to_string(other.shape()));
  });
  TensorImpl& impl = *x.impl();
  if (!grad_enabled() || !(x.requires_grad() || other.requires_grad())) {
    launch<kernels::Binary<Op>>(x.device(), x.view(), expanded(other, x.shape()), x.view());
    x.mark_changed(op);
    return;
  }
  check(!impl.requires_grad, op, [&] {
    return str_cat(x.name().empty() ? "a leaf" : x.name(),
                   " requires a gradient and cannot be changed in place in the graph; put "
                   "the call under NoGrad, or use the form that returns a new tensor");
  });
  check(impl.storage->views.load(std::memory_order_relaxed) == 0, op,
        "the memory is shared with a view, which would miss the change in the graph; use the form "
        "that returns a new tensor");
  Tensor before = x.detach();
  before.impl()->grad_fn = impl.grad_fn;
  const Tensor result = binary<Op>(before, other);
  impl.storage = result.impl()->storage;
  impl.strides = result.strides();
  impl.offset = 0;
  impl.grad_fn = result.impl()->grad_fn;
}

}  // namespace

Tensor& Tensor::add_(const Tensor& other, double alpha) {
  in_place<kernels::Add>("add_", *this, alpha == 1 ? other : other * alpha);
  return *this;
}

Tensor& Tensor::mul_(const Tensor& other) {
  in_place<kernels::Mul>("mul_", *this, other);
  return *this;
}

Tensor& Tensor::mul_(double factor) { return mul_(constant_like(*this, factor)); }

}  // namespace lockstep
