#include "lockstep/kernels/cuda/elementwise.cuh"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::kernels {
namespace {

template <class Op, class T>
struct BinaryBody {
  using Inputs = std::tuple<T, T>;
  using Output = T;
  static __device__ T run(T a, T b) {
    using W = cuda::Wide<T>;
    using C = Compute<Op, W>;
    return static_cast<T>(static_cast<W>(
        Op::fwd(static_cast<C>(static_cast<W>(a)), static_cast<C>(static_cast<W>(b)))));
  }
};

template <class Op, class T>
struct VjpABody {
  using Inputs = std::tuple<T, T, T, T>;
  using Output = T;
  static __device__ T run(T g, T a, T b, T y) {
    using C = cuda::Wide<T>;
    return static_cast<T>(Op::template vjp_a<C>(static_cast<C>(g), static_cast<C>(a),
                                                static_cast<C>(b), static_cast<C>(y)));
  }
};

template <class Op, class T>
struct VjpBBody {
  using Inputs = std::tuple<T, T, T, T>;
  using Output = T;
  static __device__ T run(T g, T a, T b, T y) {
    using C = cuda::Wide<T>;
    return static_cast<T>(Op::template vjp_b<C>(static_cast<C>(g), static_cast<C>(a),
                                                static_cast<C>(b), static_cast<C>(y)));
  }
};

}  // namespace

template <class Op>
void Binary<Op>::cuda(const View& a, const View& b, const View& y) {
  visit_dtype(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (is_floating_v<T> || Op::kIntegers) {
      cuda::elementwise<BinaryBody<Op, T>>(Op::kName, y, a, b);
    } else {
      refuse_dtype<Op>(a.dtype);
    }
  });
}

// In the two rules, a view that is not looked at need not be read.
template <class Op>
void BinaryVjpA<Op>::cuda(const View& g, const View& a, const View& b, const View& y,
                          const View& ga) {
  visit_floating(g.dtype, Op::kName, [&](auto tag) {
    constexpr bool operands = Op::kUsesOperands;
    cuda::elementwise<VjpABody<Op, typename decltype(tag)::type>>(
        Op::kName, ga, g, operands ? a : g, operands ? b : g, Op::kUsesY ? y : g);
  });
}

template <class Op>
void BinaryVjpB<Op>::cuda(const View& g, const View& a, const View& b, const View& y,
                          const View& gb) {
  visit_floating(g.dtype, Op::kName, [&](auto tag) {
    constexpr bool operands = Op::kUsesOperands;
    cuda::elementwise<VjpBBody<Op, typename decltype(tag)::type>>(
        Op::kName, gb, g, operands ? a : g, operands ? b : g, Op::kUsesY ? y : g);
  });
}

#define LOCKSTEP_INSTANTIATE(Op, function)                                                       \
  template void Binary<Op>::cuda(const View& a, const View& b, const View& y);                   \
  template void BinaryVjpA<Op>::cuda(const View& g, const View& a, const View& b, const View& y, \
                                     const View& ga);                                            \
  template void BinaryVjpB<Op>::cuda(const View& g, const View& a, const View& b, const View& y, \
                                     const View& gb);
LOCKSTEP_BINARY_OPS(LOCKSTEP_INSTANTIATE)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::kernels
