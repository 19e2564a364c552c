# Looks for CUDA and what belongs to it, and sets LOCKSTEP_WITH_CUDA where kernels/cuda/ is built: with
# nvcc, for CUDA devices 8.0 and 9.0 and, as PTX, for what comes after (CMAKE_CUDA_ARCHITECTURES).
# What is built runs on machines without a driver too; it sees no devices there.
# EMULATED is for tests: kernels/cuda/ is compiled as C++ against the emulator of tests/simt/.
set(LOCKSTEP_CUDA AUTO CACHE STRING "Build for CUDA: AUTO (where there is a toolkit), ON, OFF or EMULATED")
set_property(CACHE LOCKSTEP_CUDA PROPERTY STRINGS AUTO ON OFF EMULATED)

if(LOCKSTEP_CUDA STREQUAL "OFF" OR LOCKSTEP_CUDA STREQUAL "EMULATED")
  return()
endif()
if(NOT LOCKSTEP_CUDA MATCHES "^(AUTO|ON)$")
  message(FATAL_ERROR "LOCKSTEP_CUDA: want AUTO, ON, OFF or EMULATED, got '${LOCKSTEP_CUDA}'.")
endif()

find_package(CUDAToolkit QUIET)
set(LOCKSTEP_CUDA_FOUND "")
if(CUDAToolkit_FOUND)
  list(APPEND LOCKSTEP_CUDA_FOUND "toolkit ${CUDAToolkit_VERSION}")
  if(TARGET CUDA::cublasLt)
    list(APPEND LOCKSTEP_CUDA_FOUND "cuBLASLt")
  endif()
endif()
find_package(cuDNN 9 QUIET)
find_package(NCCL 2.14 QUIET)
if(cuDNN_FOUND)
  list(APPEND LOCKSTEP_CUDA_FOUND "cuDNN ${cuDNN_VERSION}")
endif()
if(NCCL_FOUND)
  list(APPEND LOCKSTEP_CUDA_FOUND "NCCL ${NCCL_VERSION}")
endif()
if(LOCKSTEP_CUDA_FOUND)
  list(JOIN LOCKSTEP_CUDA_FOUND ", " LOCKSTEP_CUDA_FOUND)
else()
  set(LOCKSTEP_CUDA_FOUND "nothing")
endif()

# Before 13 what is asked of a stream's capture has other arguments.
if(NOT CUDAToolkit_NVCC_EXECUTABLE OR NOT TARGET CUDA::cublasLt OR CUDAToolkit_VERSION VERSION_LESS 13)
  if(LOCKSTEP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LOCKSTEP_CUDA=ON: there is no nvcc of CUDA 13 or newer with cuBLASLt (found of "
                        "CUDA: ${LOCKSTEP_CUDA_FOUND}). Install CUDA's toolkit, or name its folder in "
                        "CUDAToolkit_ROOT; with AUTO or OFF Lockstep is built for the CPU.")
  endif()
  message(STATUS "Found of CUDA: ${LOCKSTEP_CUDA_FOUND}. Without nvcc and cuBLASLt of CUDA 13 or newer "
                 "Lockstep is built for the CPU alone.")
  return()
endif()
message(STATUS "Found of CUDA: ${LOCKSTEP_CUDA_FOUND}. Kernels for CUDA are built "
               "(LOCKSTEP_CUDA=OFF leaves them out).")
set(LOCKSTEP_WITH_CUDA ON)
string(APPEND LOCKSTEP_FIND_DEPENDENCIES "find_dependency(CUDAToolkit)\n")
if(cuDNN_FOUND)
  string(APPEND LOCKSTEP_FIND_DEPENDENCIES "find_dependency(cuDNN 9)\n")
else()
  message(STATUS "Without cuDNN 9 convolutions on CUDA are an error.")
endif()
if(NOT NCCL_FOUND)
  message(STATUS "Without NCCL's nccl.h (2.14 or newer) transport nccl is an error.")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
# What ptxas says of each kernel stays beside its object, for tests/cuda/.
set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/keep_ptxas_report.sh
                                 ${CMAKE_CXX_COMPILER_LAUNCHER})
enable_language(CUDA)
# CMake before 3.26 does not know that this nvcc has C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()
