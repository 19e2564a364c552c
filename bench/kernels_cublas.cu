// cuBLASLt alone.
#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "kernels_candidates.h"
#include "kernels_nvidia.h"
#include "lockstep/kernels/cuda/blas_lt.cuh"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/memory.h"

namespace lockstep::bench {
namespace {

constexpr uint64_t kWorkspaceBytes = uint64_t{64} << 20;
constexpr int kMostCandidates = 32;

cublasLtHandle_t handle() {
  static cublasLtHandle_t handle = nullptr;
  if (handle == nullptr) LOCKSTEP_BLAS_CHECK(cublasLtCreate(&handle));
  return handle;
}

// (rows, columns) by columns, or its transpose.
cublasLtMatrixLayoutOpaque_t layout(DType dtype, int64_t rows, int64_t columns,
                                    cublasOperation_t operation) {
  if (operation == CUBLAS_OP_T) std::swap(rows, columns);
  cublasLtMatrixLayoutOpaque_t out;
  LOCKSTEP_BLAS_CHECK(cublasLtMatrixLayoutInit_internal(&out, sizeof out, cuda::blas_type(dtype),
                                                        static_cast<uint64_t>(rows),
                                                        static_cast<uint64_t>(columns), rows));
  return out;
}

}  // namespace

double cublas_rate(const View& a, const View& b, const View& y) {
  const int64_t m = a.shape[0], k = a.shape[1], n = b.shape[1];
  const cuda::DeviceGuard guard(a.device);
  const auto workspace = allocate(kWorkspaceBytes, a.device);
  cublasLtMatmulPreferenceOpaque_t preference;
  LOCKSTEP_BLAS_CHECK(cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference));
  cuda::set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  const float one = 1, zero = 0;
  Fastest fastest(a.device);
  for (const cublasOperation_t of_a : {CUBLAS_OP_T, CUBLAS_OP_N}) {
    for (const cublasOperation_t of_b : {CUBLAS_OP_N, CUBLAS_OP_T}) {
      cublasLtMatmulDescOpaque_t product;
      LOCKSTEP_BLAS_CHECK(cublasLtMatmulDescInit_internal(
          &product, sizeof product, cuda::blas_compute_type(a.dtype), CUDA_R_32F));
      cuda::set(&product, CUBLASLT_MATMUL_DESC_TRANSA, of_a);
      cuda::set(&product, CUBLASLT_MATMUL_DESC_TRANSB, of_b);
      auto lies_a = layout(a.dtype, m, k, of_a), lies_b = layout(b.dtype, k, n, of_b);
      auto lies_y = layout(y.dtype, m, n, CUBLAS_OP_N);
      std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> candidates = {};
      int found = 0;
      const cublasStatus_t status = cuda::blas().cublasLtMatmulAlgoGetHeuristic(
          handle(), &product, &lies_a, &lies_b, &lies_y, &lies_y, &preference, kMostCandidates,
          candidates.data(), &found);
      if (status == CUBLAS_STATUS_NOT_SUPPORTED) continue;
      cuda::require(status, "cublasLtMatmulAlgoGetHeuristic");
      for (const auto& candidate : std::span(candidates).first(static_cast<size_t>(found))) {
        if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
        fastest.measure([&] {
          LOCKSTEP_BLAS_CHECK(cublasLtMatmul(handle(), &product, &one, a.data, &lies_a, b.data,
                                             &lies_b, &zero, y.data, &lies_y, y.data, &lies_y,
                                             &candidate.algo, workspace.get(),
                                             candidate.workspaceSize, cuda::stream()));
        });
      }
    }
  }
  return fastest.rate(2.0 * static_cast<double>(m * k * n));
}

}  // namespace lockstep::bench
