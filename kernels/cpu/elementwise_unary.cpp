#include <algorithm>
#include <concepts>

#include "lockstep/kernels/cpu/elementwise_loops.h"

namespace lockstep::kernels {
namespace {

// An op with fwd(x) = second(x, first(x)), whose chain of dependent operations is longer than what
// a processor looks ahead: one step after the other over a piece takes two thirds of the time.
template <class Op>
concept TwoSteps = requires(float x) {
  Op::second(x, Op::first(x));
};

template <class Op, class T>
void unary_loop(const void* const* in, void* out, int64_t n) {
  using C = Compute<Op, T>;
  const T* x = static_cast<const T*>(in[0]);
  T* y = static_cast<T*>(out);
  if constexpr (TwoSteps<Op> && std::is_same_v<T, float>) {
    constexpr int64_t kPiece = 512;
    float buffer[kPiece];
    for (int64_t i = 0; i < n; i += kPiece, x += kPiece, y += kPiece) {
      const int64_t count = std::min(kPiece, n - i);
      float* between = buffer;
      vector_loop(count, [=](int64_t k) LOCKSTEP_INLINE_LAMBDA { between[k] = Op::first(x[k]); });
      vector_loop(count,
                  [=](int64_t k) LOCKSTEP_INLINE_LAMBDA { y[k] = Op::second(x[k], between[k]); });
    }
  } else {
    vector_loop<widest_of<Op>>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA {
      y[i] = static_cast<T>(Op::fwd(static_cast<C>(x[i])));
    });
  }
}

}  // namespace

template <class Op>
void Unary<Op>::cpu(const View& x, const View& y) {
  visit_lanes<Op>(x.dtype, [&](auto tag) {
    run_blocks({&x}, y, &unary_loop<Op, typename decltype(tag)::type>, is_much_arithmetic<Op>);
  });
}

#define LOCKSTEP_INSTANTIATE(Op, function) template struct Unary<Op>;
LOCKSTEP_UNARY_OPS(LOCKSTEP_INSTANTIATE)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::kernels
