#include "lockstep/kernels/cpu/elementwise_loops.h"

namespace lockstep::kernels {
namespace {

// Elements of one width choose among, or become, bytes: vectors of 512 bits have masks for that.
template <class Op, class T>
void compare_loop(const void* const* in, void* out, int64_t n) {
  const T* a = static_cast<const T*>(in[0]);
  const T* b = static_cast<const T*>(in[1]);
  bool* y = static_cast<bool*>(out);
  vector_loop(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { y[i] = Op::fwd(a[i], b[i]); });
}

template <class T>
void where_loop(const void* const* in, void* out, int64_t n) {
  const auto* condition = static_cast<const uint8_t*>(in[0]);
  const T* a = static_cast<const T*>(in[1]);
  const T* b = static_cast<const T*>(in[2]);
  T* y = static_cast<T*>(out);
  vector_loop(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { y[i] = condition[i] != 0 ? a[i] : b[i]; });
}

}  // namespace

template <class Op>
void Compare<Op>::cpu(const View& a, const View& b, const View& y) {
  visit_dtype(a.dtype, [&](auto tag) {
    run_blocks({&a, &b}, y, &compare_loop<Op, Lane<typename decltype(tag)::type>>);
  });
}

void Where::cpu(const View& condition, const View& a, const View& b, const View& y) {
  visit_dtype(a.dtype, [&](auto tag) {
    run_blocks({&condition, &a, &b}, y, &where_loop<Lane<typename decltype(tag)::type>>);
  });
}

#define LOCKSTEP_INSTANTIATE(Op, function) template struct Compare<Op>;
LOCKSTEP_COMPARE_OPS(LOCKSTEP_INSTANTIATE)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::kernels
