#include "lockstep/kernels/cuda/elementwise.cuh"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::kernels {
namespace {

template <class Op, class T>
struct CompareBody {
  using Inputs = std::tuple<T, T>;
  using Output = bool;
  static __device__ bool run(T a, T b) {
    return Op::fwd(static_cast<cuda::Wide<T>>(a), static_cast<cuda::Wide<T>>(b));
  }
};

// Of elements of sizeof(T) bytes, whatever they are.
template <class T>
struct WhereBody {
  using Inputs = std::tuple<uint8_t, T, T>;
  using Output = T;
  static __device__ T run(uint8_t condition, T a, T b) { return condition != 0 ? a : b; }
};

}  // namespace

template <class Op>
void Compare<Op>::cuda(const View& a, const View& b, const View& y) {
  visit_dtype(a.dtype, [&](auto tag) {
    cuda::elementwise<CompareBody<Op, typename decltype(tag)::type>>(Op::kName, y, a, b);
  });
}

void Where::cuda(const View& condition, const View& a, const View& b, const View& y) {
  switch (size_of(a.dtype)) {
    case 1:
      return cuda::elementwise<WhereBody<uint8_t>>("where", y, condition, a, b);
    case 2:
      return cuda::elementwise<WhereBody<uint16_t>>("where", y, condition, a, b);
    case 4:
      return cuda::elementwise<WhereBody<uint32_t>>("where", y, condition, a, b);
    default:
      return cuda::elementwise<WhereBody<uint64_t>>("where", y, condition, a, b);
  }
}

#define LOCKSTEP_INSTANTIATE(Op, function) \
  template void Compare<Op>::cuda(const View& a, const View& b, const View& y);
LOCKSTEP_COMPARE_OPS(LOCKSTEP_INSTANTIATE)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::kernels
