#pragma once

#include <cublasLt.h>

#include <source_location>
#include <string_view>

#include "lockstep/kernels/cuda/library.cuh"
#include "lockstep/kernels/cuda/runtime.h"

// cuBLASLt's functions and types, for blas.cu, and for bench_kernels, which measures the library
// alone.
namespace lockstep::cuda {

// What is called of the library: with three that its header's own inline functions call.
#define LOCKSTEP_BLAS_FUNCTIONS(X)         \
  X(cublasLtCreate)                        \
  X(cublasLtGetStatusName)                 \
  X(cublasLtGetStatusString)               \
  X(cublasLtMatmul)                        \
  X(cublasLtMatmulAlgoGetHeuristic)        \
  X(cublasLtMatmulDescInit_internal)       \
  X(cublasLtMatmulDescSetAttribute)        \
  X(cublasLtMatmulPreferenceInit_internal) \
  X(cublasLtMatmulPreferenceSetAttribute)  \
  X(cublasLtMatrixLayoutInit_internal)     \
  X(cublasLtMatrixLayoutSetAttribute)

// The library is loaded at the first call, not at the start of the program: it takes half a second
// and 200 MB, which a program that only has a CUDA half, and each rank, would pay.
struct BlasFunctions {
#define LOCKSTEP_DECLARE(f) decltype(&::f) f = nullptr;
  LOCKSTEP_BLAS_FUNCTIONS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE
};
// Throws Error(kDevice) where it cannot be had.
const BlasFunctions& blas();

inline void require(cublasStatus_t status, std::string_view call,
                    std::source_location where = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const bool is_late =
      status == CUBLAS_STATUS_EXECUTION_FAILED || status == CUBLAS_STATUS_INTERNAL_ERROR;
  throw Error(status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::kOutOfMemory : ErrorCode::kDevice,
              "matmul",
              str_cat(blas().cublasLtGetStatusName(status), " (",
                      blas().cublasLtGetStatusString(status), ") from ", call, failed_in(is_late)),
              where);
}
#define LOCKSTEP_BLAS_CHECK(call) ::lockstep::cuda::require(::lockstep::cuda::blas().call, #call)

inline cudaDataType_t blas_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return CUDA_R_64F;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

inline cublasComputeType_t blas_compute_type(DType dtype) {
  if (dtype == DType::kF64) return CUBLAS_COMPUTE_64F;
  return dtype == DType::kF32 && allows_tf32() ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, const T& value) {
  LOCKSTEP_BLAS_CHECK(cublasLtMatmulDescSetAttribute(desc, name, &value, sizeof value));
}
template <class T>
void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name, const T& value) {
  LOCKSTEP_BLAS_CHECK(cublasLtMatrixLayoutSetAttribute(layout, name, &value, sizeof value));
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t name,
         const T& value) {
  LOCKSTEP_BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value));
}

}  // namespace lockstep::cuda
