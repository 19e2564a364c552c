#include "lockstep/kernels/copy.h"

#include "lockstep/kernels/convert.h"
#include "lockstep/kernels/cuda/elementwise.cuh"

namespace lockstep::kernels {
namespace {

template <class From, class To>
struct CopyBody {
  using Inputs = std::tuple<From>;
  using Output = To;
  static __device__ To run(From x) {
    return static_cast<To>(convert<cuda::Wide<To>>(static_cast<cuda::Wide<From>>(x)));
  }
};

// Elements of sizeof(T) bytes, as they are.
template <class T>
struct BitsBody {
  using Inputs = std::tuple<T>;
  using Output = T;
  static __device__ T run(T x) { return x; }
};

template <class T>
__global__ void __launch_bounds__(cuda::kThreads)
    fill_kernel(T* x, cuda::Indexer<1> indexer, int64_t count, T value) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    x[indexer.locate(i).at[0]] = value;
  }
}

template <class T>
void fill_bits(const View& x, const void* element) {
  T value;
  std::memcpy(&value, element, sizeof value);
  const int64_t count = x.numel();
  const View* const views[1] = {&x};
  cuda::launch_kernel(cuda::grid_for(count), dim3(cuda::kThreads), fill_kernel<T>,
                      static_cast<T*>(x.data), cuda::make_indexer(views, memory_order(x), "fill_"),
                      count, value);
}

template <class V>
void fill(const View& x, V value) {
  if (x.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T element = element_of<T>(value);
    using Bits = std::conditional_t<
        sizeof(T) == 1, uint8_t,
        std::conditional_t<sizeof(T) == 2, uint16_t,
                           std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
    fill_bits<Bits>(x, &element);
  });
}

}  // namespace

void Copy::cuda(const View& x, const View& y) {
  if (x.dtype == y.dtype) {
    switch (size_of(x.dtype)) {
      case 1:
        return cuda::elementwise<BitsBody<uint8_t>>("copy", y, x);
      case 2:
        return cuda::elementwise<BitsBody<uint16_t>>("copy", y, x);
      case 4:
        return cuda::elementwise<BitsBody<uint32_t>>("copy", y, x);
      default:
        return cuda::elementwise<BitsBody<uint64_t>>("copy", y, x);
    }
  }
  visit_dtype(x.dtype, [&](auto from) {
    visit_dtype(y.dtype, [&](auto to) {
      cuda::elementwise<CopyBody<typename decltype(from)::type, typename decltype(to)::type>>(
          "copy", y, x);
    });
  });
}

void Fill::cuda(const View& x, double value) { fill(x, value); }

void Fill::cuda(const View& x, int64_t value) { fill(x, value); }

}  // namespace lockstep::kernels
