#include "lockstep/kernels/cpu/elementwise_loops.h"

namespace lockstep::kernels {
namespace {

template <class Op, class T>
void unary_loop(const void* const* in, void* out, int64_t n) {
  using C = Compute<Op, T>;
  const T* x = static_cast<const T*>(in[0]);
  T* y = static_cast<T*>(out);
  vector_loop(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA {
    y[i] = static_cast<T>(Op::fwd(static_cast<C>(x[i])));
  });
}

}  // namespace

template <class Op>
void Unary<Op>::cpu(const View& x, const View& y) {
  visit_lanes<Op>(x.dtype, [&](auto tag) {
    run_blocks({&x}, y, &unary_loop<Op, typename decltype(tag)::type>);
  });
}

#define LOCKSTEP_INSTANTIATE(Op, function) template struct Unary<Op>;
LOCKSTEP_UNARY_OPS(LOCKSTEP_INSTANTIATE)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::kernels
