#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

// What the uses of NVIDIA's libraries share.
namespace lockstep::cuda {

// The current device's T, made of its number at its first use. Never destroyed: memory of static
// lifetime may still be worked on when it would have been.
template <class T>
T& of_current_device() {
  static auto* mutex = new std::mutex;
  static auto* all = new std::map<int, T>;
  int device = 0;
  LOCKSTEP_CUDA_CHECK(cudaGetDevice(&device));
  std::lock_guard lock(*mutex);
  return all->try_emplace(device, device).first->second;
}

// Whether f32 may be multiplied with 10 bits of fraction, and summed in f32.
inline bool allows_tf32() {
  static const bool allows = [] {
    const char* set = std::getenv("LOCKSTEP_TF32");
    const std::string_view text = set == nullptr ? "" : set;
    lockstep::check(text.empty() || text == "0" || text == "1", "LOCKSTEP_TF32",
                    [&] { return str_cat("want 0 or 1, got '", text, "'"); });
    return text == "1";
  }();
  return allows;
}

// The power of two, `most` at most, that an address is a multiple of: libraries choose by it.
inline int64_t alignment(const void* address, int64_t most) {
  int64_t bytes = most;
  while (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) != 0) bytes /= 2;
  return bytes;
}

// Shapes repeat from step to step; a program that never repeats one starts over from time to time.
inline constexpr size_t kMostPlans = 512;

}  // namespace lockstep::cuda
