#include "lockstep/kernels/cpu/elementwise_loops.h"

namespace lockstep::kernels {
namespace {

template <class Op, class T>
void binary_loop(const void* const* in, void* out, int64_t n) {
  using C = Compute<Op, T>;
  const T* a = static_cast<const T*>(in[0]);
  const T* b = static_cast<const T*>(in[1]);
  T* y = static_cast<T*>(out);
  vector_loop<kLight>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA {
    y[i] = static_cast<T>(Op::fwd(static_cast<C>(a[i]), static_cast<C>(b[i])));
  });
}

template <class Op, class T>
void vjp_a_loop(const void* const* in, void* out, int64_t n) {
  const T* g = static_cast<const T*>(in[0]);
  const T* a = static_cast<const T*>(in[1]);
  const T* b = static_cast<const T*>(in[2]);
  const T* y = static_cast<const T*>(in[3]);
  T* ga = static_cast<T*>(out);
  vector_loop<kLight>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA {
    ga[i] = Op::template vjp_a<T>(g[i], a[i], b[i], y[i]);
  });
}

template <class Op, class T>
void vjp_b_loop(const void* const* in, void* out, int64_t n) {
  const T* g = static_cast<const T*>(in[0]);
  const T* a = static_cast<const T*>(in[1]);
  const T* b = static_cast<const T*>(in[2]);
  const T* y = static_cast<const T*>(in[3]);
  T* gb = static_cast<T*>(out);
  vector_loop<kLight>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA {
    gb[i] = Op::template vjp_b<T>(g[i], a[i], b[i], y[i]);
  });
}

}  // namespace

template <class Op>
void Binary<Op>::cpu(const View& a, const View& b, const View& y) {
  visit_lanes<Op>(a.dtype, [&](auto tag) {
    run_blocks({&a, &b}, y, &binary_loop<Op, typename decltype(tag)::type>);
  });
}

// In the two rules, a view that is not looked at need not be read.
template <class Op>
void BinaryVjpA<Op>::cpu(const View& g, const View& a, const View& b, const View& y,
                         const View& ga) {
  visit_floating_lanes(g.dtype, Op::kName, [&](auto tag) {
    constexpr bool operands = Op::kUsesOperands;
    run_blocks({&g, operands ? &a : &g, operands ? &b : &g, Op::kUsesY ? &y : &g}, ga,
               &vjp_a_loop<Op, typename decltype(tag)::type>);
  });
}

template <class Op>
void BinaryVjpB<Op>::cpu(const View& g, const View& a, const View& b, const View& y,
                         const View& gb) {
  visit_floating_lanes(g.dtype, Op::kName, [&](auto tag) {
    constexpr bool operands = Op::kUsesOperands;
    run_blocks({&g, operands ? &a : &g, operands ? &b : &g, Op::kUsesY ? &y : &g}, gb,
               &vjp_b_loop<Op, typename decltype(tag)::type>);
  });
}

#define LOCKSTEP_INSTANTIATE(Op, function) \
  template struct Binary<Op>;              \
  template struct BinaryVjpA<Op>;          \
  template struct BinaryVjpB<Op>;
LOCKSTEP_BINARY_OPS(LOCKSTEP_INSTANTIATE)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::kernels
