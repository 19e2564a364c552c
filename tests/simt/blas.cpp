// Stands in for cuBLASLt behind kernels/cuda/blas.h: a kernel of one thread, so that the emulator
// checks its accesses and orders it as those of any other.
#include "lockstep/kernels/cuda/blas.h"

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/error.h"

namespace lockstep::cuda {
namespace {

template <class T>
T& element(const Matrix& x, int64_t batch, int64_t row, int64_t column) {
  return static_cast<T*>(x.data)[batch * x.batch + row * x.row + column * x.column];
}

template <class T>
__global__ void product_kernel(Matrix a, Matrix b, Matrix out, const T* bias, T* before,
                               int64_t batches, int64_t m, int64_t n, int64_t k, bool adds,
                               bool gelus) {
  using W = Wide<T>;
  for (int64_t i = 0; i < batches * m * n; ++i) {
    const int64_t batch = i / (m * n), row = i / n % m, column = i % n;
    W sum = 0;
    for (int64_t p = 0; p < k; ++p) {
      sum += static_cast<W>(element<T>(a, batch, row, p)) *
             static_cast<W>(element<T>(b, batch, p, column));
    }
    T& y = element<T>(out, batch, row, column);
    if (adds) sum += static_cast<W>(y);
    if (bias != nullptr) sum += static_cast<W>(bias[column]);
    if (before != nullptr) before[&y - static_cast<T*>(out.data)] = static_cast<T>(sum);
    y = static_cast<T>(gelus ? kernels::GeluTanh::fwd(sum) : sum);
  }
}

}  // namespace

// A library need not have an algorithm that adds a bias or does gelu; here there is none for f64. A
// bias that is not aligned is one that a kernel of cuBLASLt's may fault on, and rows of gelu's
// inputs that are not are refused.
bool multiply(const Product& p) {
  if ((p.bias != nullptr || p.gelus) && p.dtype == DType::kF64) return false;
  if (reinterpret_cast<uintptr_t>(p.bias) % 16 != 0 ||
      (p.before != nullptr &&
       (reinterpret_cast<uintptr_t>(p.before) % 16 != 0 || p.out.row % 8 != 0))) {
    throw Error(ErrorCode::kDevice, "matmul", "misaligned address");
  }
  visit_floating(p.dtype, "matmul", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_kernel(dim3(1), dim3(1), product_kernel<T>, p.a, p.b, p.out,
                  static_cast<const T*>(p.bias), static_cast<T*>(p.before), p.batches, p.m, p.n,
                  p.k, p.adds, p.gelus);
  });
  return true;
}

}  // namespace lockstep::cuda
