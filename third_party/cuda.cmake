# Looks for CUDA and what belongs to it. This version of Lockstep has kernels for the CPU alone, so
# what is found is reported and not used.
# EMULATED is for tests: kernels/cuda/ is compiled as C++ against the emulator of tests/simt/.
set(LOCKSTEP_CUDA AUTO CACHE STRING "Build for CUDA: AUTO (where there is a toolkit), ON, OFF or EMULATED")
set_property(CACHE LOCKSTEP_CUDA PROPERTY STRINGS AUTO ON OFF EMULATED)

if(LOCKSTEP_CUDA STREQUAL "OFF" OR LOCKSTEP_CUDA STREQUAL "EMULATED")
  return()
endif()
if(NOT LOCKSTEP_CUDA MATCHES "^(AUTO|ON)$")
  message(FATAL_ERROR "LOCKSTEP_CUDA: want AUTO, ON, OFF or EMULATED, got '${LOCKSTEP_CUDA}'.")
endif()

# The version that a header defines as <prefix>MAJOR, <prefix>MINOR, <prefix>PATCH or PATCHLEVEL.
function(lockstep_header_version result header prefix)
  set(version "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${header} line LIMIT_COUNT 1
         REGEX "^#define[ \t]+${prefix}${part}(LEVEL)?[ \t]+[0-9]+")
    if(line MATCHES "([0-9]+)[ \t]*(/.*)?$")
      list(APPEND version ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(JOIN version "." version)
  set(${result} ${version} PARENT_SCOPE)
endfunction()

find_package(CUDAToolkit QUIET)
set(LOCKSTEP_CUDA_FOUND "")
if(CUDAToolkit_FOUND)
  list(APPEND LOCKSTEP_CUDA_FOUND "toolkit ${CUDAToolkit_VERSION}")
  if(TARGET CUDA::cublas AND TARGET CUDA::cublasLt)
    list(APPEND LOCKSTEP_CUDA_FOUND "cuBLAS")
  endif()
endif()
find_path(LOCKSTEP_CUDNN_INCLUDE_DIR cudnn_version.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_path(LOCKSTEP_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
mark_as_advanced(LOCKSTEP_CUDNN_INCLUDE_DIR LOCKSTEP_NCCL_INCLUDE_DIR)
if(LOCKSTEP_CUDNN_INCLUDE_DIR)
  lockstep_header_version(version ${LOCKSTEP_CUDNN_INCLUDE_DIR}/cudnn_version.h CUDNN_)
  list(APPEND LOCKSTEP_CUDA_FOUND "cuDNN ${version}")
endif()
if(LOCKSTEP_NCCL_INCLUDE_DIR)
  lockstep_header_version(version ${LOCKSTEP_NCCL_INCLUDE_DIR}/nccl.h NCCL_)
  list(APPEND LOCKSTEP_CUDA_FOUND "NCCL ${version}")
endif()
if(LOCKSTEP_CUDA_FOUND)
  list(JOIN LOCKSTEP_CUDA_FOUND ", " LOCKSTEP_CUDA_FOUND)
else()
  set(LOCKSTEP_CUDA_FOUND "nothing")
endif()

if(LOCKSTEP_CUDA STREQUAL "ON")
  message(FATAL_ERROR "LOCKSTEP_CUDA=ON: this version of Lockstep has no CUDA kernels (found of "
                      "CUDA: ${LOCKSTEP_CUDA_FOUND}). Configure with LOCKSTEP_CUDA=AUTO or OFF to "
                      "build for the CPU.")
endif()
message(STATUS "Found of CUDA: ${LOCKSTEP_CUDA_FOUND}. This version of Lockstep computes on the "
               "CPU alone.")
