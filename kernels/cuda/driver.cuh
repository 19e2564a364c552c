#pragma once

// Functions of CUDA's driver, which the library is not linked to.

#include <cudaTypedefs.h>

#include <string_view>

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::cuda {

// The driver's function of this name. Throws Error(kDevice) where CUDA fails, and
// Error(kInvalidArgument) where the driver is older than CUDA 12.
template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  LOCKSTEP_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
  lockstep::check(found == cudaDriverEntryPointSuccess && function != nullptr, "cuda", [&] {
    return str_cat("want a driver of CUDA 12 or later, got one without ", name);
  });
  return reinterpret_cast<Function>(function);
}

// Throws Error(kDevice) that names the call, but for CUDA_SUCCESS.
inline void check_driver(CUresult result, std::string_view call) {
  if (result == CUDA_SUCCESS) return;
  throw Error(ErrorCode::kDevice, "cuda",
              str_cat("error ", static_cast<int>(result), " of CUDA's driver from ", call,
                      failed_in(may_be_late(result))));
}

}  // namespace lockstep::cuda
