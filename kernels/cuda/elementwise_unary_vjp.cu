#include "lockstep/kernels/cuda/elementwise.cuh"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::kernels {
namespace {

template <class Op, class T>
struct VjpBody {
  using Inputs = std::tuple<T, T, T>;
  using Output = T;
  static __device__ T run(T g, T x, T y) {
    using C = cuda::Wide<T>;
    return static_cast<T>(
        Op::template vjp<C>(static_cast<C>(g), static_cast<C>(x), static_cast<C>(y)));
  }
};

}  // namespace

template <class Op>
void UnaryVjp<Op>::cuda(const View& g, const View& x, const View& y, const View& gx) {
  visit_floating(g.dtype, Op::kName, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // A view that the rule does not look at need not be read.
    cuda::elementwise<VjpBody<Op, T>>(Op::kName, gx, g, Op::kUsesX ? x : g, Op::kUsesY ? y : g);
  });
}

#define LOCKSTEP_INSTANTIATE(Op, function) \
  template void UnaryVjp<Op>::cuda(const View& g, const View& x, const View& y, const View& gx);
LOCKSTEP_UNARY_OPS(LOCKSTEP_INSTANTIATE)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::kernels
