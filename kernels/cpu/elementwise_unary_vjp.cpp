#include "lockstep/kernels/cpu/elementwise_loops.h"

namespace lockstep::kernels {
namespace {

template <class Op, class T>
void unary_vjp_loop(const void* const* in, void* out, int64_t n) {
  const T* g = static_cast<const T*>(in[0]);
  const T* x = static_cast<const T*>(in[1]);
  const T* y = static_cast<const T*>(in[2]);
  T* gx = static_cast<T*>(out);
  vector_loop<widest_of<Op>>(
      n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { gx[i] = Op::template vjp<T>(g[i], x[i], y[i]); });
}

}  // namespace

template <class Op>
void UnaryVjp<Op>::cpu(const View& g, const View& x, const View& y, const View& gx) {
  visit_floating_lanes(g.dtype, Op::kName, [&](auto tag) {
    // A view that the rule does not look at need not be read.
    run_blocks({&g, Op::kUsesX ? &x : &g, Op::kUsesY ? &y : &g}, gx,
               &unary_vjp_loop<Op, typename decltype(tag)::type>, is_much_arithmetic<Op>);
  });
}

#define LOCKSTEP_INSTANTIATE(Op, function) template struct UnaryVjp<Op>;
LOCKSTEP_UNARY_OPS(LOCKSTEP_INSTANTIATE)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::kernels
