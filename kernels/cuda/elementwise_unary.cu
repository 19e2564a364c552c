#include "lockstep/kernels/cuda/elementwise.cuh"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::kernels {
namespace {

template <class Op, class T>
struct UnaryBody {
  using Inputs = std::tuple<T>;
  using Output = T;
  static __device__ T run(T x) {
    using C = Compute<Op, cuda::Wide<T>>;
    return static_cast<T>(
        static_cast<cuda::Wide<T>>(Op::fwd(static_cast<C>(static_cast<cuda::Wide<T>>(x)))));
  }
};

}  // namespace

template <class Op>
void Unary<Op>::cuda(const View& x, const View& y) {
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (is_floating_v<T> || Op::kIntegers) {
      cuda::elementwise<UnaryBody<Op, T>>(Op::kName, y, x);
    } else {
      refuse_dtype<Op>(x.dtype);
    }
  });
}

#define LOCKSTEP_INSTANTIATE(Op, function) \
  template void Unary<Op>::cuda(const View& x, const View& y);
LOCKSTEP_UNARY_OPS(LOCKSTEP_INSTANTIATE)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::kernels
