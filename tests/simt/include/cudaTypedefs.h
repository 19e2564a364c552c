#pragma once

#include "cuda_runtime.h"

// The part of CUDA's driver API that Lockstep uses, through cudaGetDriverEntryPointByVersion().

using CUstream = cudaStream_t;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using cuuint64_t = uint64_t;

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_INVALID_HANDLE = 400 };

enum CUdevice_attribute { CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122 };

inline constexpr unsigned CU_STREAM_WAIT_VALUE_GEQ = 0;
inline constexpr unsigned CU_STREAM_WRITE_VALUE_DEFAULT = 0;

using PFN_cuDeviceGetAttribute_v2000 = CUresult (*)(int*, CUdevice_attribute, CUdevice);
using PFN_cuDevicePrimaryCtxGetState_v7000 = CUresult (*)(CUdevice, unsigned*, int*);
using PFN_cuStreamWaitValue64_v11070 = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
using PFN_cuStreamWriteValue64_v11070 = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
