#pragma once

#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "lockstep/kernels/device.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/kernel_clock.h"
#ifdef LOCKSTEP_WITH_CUDA
#include "lockstep/kernels/cuda/runtime.h"
#endif

namespace lockstep {

// What messages call a kernel: "Softmax". `mangled`: its type's name.
std::string kernel_name(const char* mangled);

// Throws Error(kDevice) that names a kernel which has no cuda().
[[noreturn]] void throw_no_kernel(Device device, const char* mangled);

// Runs kernel K on `device`: K::cpu(args...) or, with that device current, K::cuda(args...), which
// returns before it has run. A kernel is a struct with these two static functions and nothing else;
// one that is declared and that a build lacks is a link error that names it. Throws Error(kDevice)
// for a device that this build or machine does not have, and for a kernel without cuda(); what CUDA
// and its libraries fail at meanwhile names the kernel.
template <class K, class... Args>
decltype(auto) launch(Device device, Args&&... args) {
  if (!device.is_cpu()) [[unlikely]] {
    require_device(device, "launch");
#ifdef LOCKSTEP_WITH_CUDA
    if constexpr (requires { K::cuda(std::forward<Args>(args)...); }) {
      const cuda::NamedKernel name(typeid(K).name());
      const cuda::DeviceGuard guard(device);
      return K::cuda(std::forward<Args>(args)...);
    }
#endif
    throw_no_kernel(device, typeid(K).name());
  }
  const KernelClock::Span span(KernelClock::current);
  return K::cpu(std::forward<Args>(args)...);
}

}  // namespace lockstep
