// Tensor's methods that change it in place. See tensor.h.

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/index.h"
#include "lockstep/core/ops/indexing.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

bool in_graph(const Tensor& x, const Tensor& other) {
  return grad_enabled() && (x.requires_grad() || other.requires_grad());
}

// Makes x the result of change(what x was), in memory of its own, so that what the graph saved of
// the old one stays.
template <class Change>
void become(const char* op, Tensor& x, const Change& change) {
  TensorImpl& impl = *x.impl();
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
  const Tensor result = change(before);
  // A result that is a view (of itself, or of what it was made from) must not become x's memory.
  const Tensor own = result.impl()->is_view ? clone(result) : result;
  impl.storage = own.impl()->storage;
  impl.strides = own.strides();
  impl.offset = own.impl()->offset;
  impl.grad_fn = own.impl()->grad_fn;
}

// x = Op(x, other).
template <class Op>
void binary_in_place(const char* op, Tensor& x, const Tensor& other,
                     Tensor (*function)(const Tensor&, const Tensor&)) {
  check_same(op, x, other);
  check(broadcast_shapes(x.shape(), other.shape(), op) == x.shape(), op, [&] {
    return str_cat("want an operand that broadcasts to ", to_string(x.shape()), ", got ",
                   to_string(other.shape()));
  });
  if (in_graph(x, other)) {
    become(op, x, [&](const Tensor& before) { return function(before, other); });
    return;
  }
  NoGrad no_grad;
  launch<kernels::Binary<Op>>(x.device(), x.view(), other.view().expanded(x.shape()), x.view());
  x.mark_changed(op);
}

// x = Op(x).
template <class Op>
void unary_in_place(const char* op, Tensor& x, Tensor (*function)(const Tensor&)) {
  if (in_graph(x, Tensor())) return become(op, x, function);
  launch<kernels::Unary<Op>>(x.device(), x.view(), x.view());
  x.mark_changed(op);
}

// x = change(x), which has x's shape and dtype.
template <class Change>
void general_in_place(const char* op, Tensor& x, const Tensor& other, const Change& change) {
  if (in_graph(x, other)) return become(op, x, change);
  NoGrad no_grad;
  const Tensor result = change(x);
  x.copy_(result);
  x.mark_changed(op);
}

}  // namespace

Tensor& Tensor::add_(const Tensor& other, double alpha) {
  binary_in_place<kernels::Add>("add_", *this, alpha == 1 ? other : other * alpha, &add);
  return *this;
}

Tensor& Tensor::sub_(const Tensor& other) {
  binary_in_place<kernels::Sub>("sub_", *this, other, &sub);
  return *this;
}

Tensor& Tensor::mul_(const Tensor& other) {
  binary_in_place<kernels::Mul>("mul_", *this, other, &mul);
  return *this;
}

Tensor& Tensor::div_(const Tensor& other) {
  binary_in_place<kernels::Div>("div_", *this, other, &div);
  return *this;
}

Tensor& Tensor::add_(double summand) { return add_(constant_like(*this, summand)); }
Tensor& Tensor::sub_(double subtrahend) { return sub_(constant_like(*this, subtrahend)); }
Tensor& Tensor::mul_(double factor) { return mul_(constant_like(*this, factor)); }
Tensor& Tensor::div_(double divisor) { return div_(constant_like(*this, divisor)); }

#define LOCKSTEP_DEFINE(Op, function)                                         \
  Tensor& Tensor::function##_() {                                             \
    unary_in_place<kernels::Op>(#function "_", *this, &::lockstep::function); \
    return *this;                                                             \
  }
LOCKSTEP_DEFINE(Neg, neg)
LOCKSTEP_DEFINE(Exp, exp)
LOCKSTEP_DEFINE(Sqrt, sqrt)
LOCKSTEP_DEFINE(Relu, relu)
LOCKSTEP_DEFINE(Sigmoid, sigmoid)
LOCKSTEP_DEFINE(Tanh, tanh)
#undef LOCKSTEP_DEFINE

Tensor& Tensor::clamp_(double low, double high) {
  general_in_place("clamp_", *this, Tensor(), [&](const Tensor& x) { return clamp(x, low, high); });
  return *this;
}

Tensor& Tensor::masked_fill_(const Tensor& mask, double value) {
  general_in_place("masked_fill_", *this, Tensor(),
                   [&](const Tensor& x) { return masked_fill(x, mask, value); });
  return *this;
}

Tensor& Tensor::index_put_(std::initializer_list<Index> indices, const Tensor& value,
                           bool accumulate) {
  const std::span<const Index> list(indices.begin(), indices.size());
  general_in_place("index_put_", *this, value, [&](const Tensor& x) {
    return lockstep::index_put(x, list, value, accumulate);
  });
  return *this;
}

Tensor& Tensor::index_put_(std::initializer_list<Index> indices, double value, bool accumulate) {
  return index_put_(indices, constant_like(*this, value), accumulate);
}

Tensor Tensor::index(std::initializer_list<Index> indices) const {
  return lockstep::index(*this, std::span<const Index>(indices.begin(), indices.size()));
}

}  // namespace lockstep
