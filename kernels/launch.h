#pragma once

#include <utility>

#include "lockstep/kernels/device.h"
#include "lockstep/kernels/kernel_clock.h"

namespace lockstep {

// Runs kernel K on `device`: K::cpu(args...) or K::cuda(args...). A kernel is a struct with these
// two static functions and nothing else; one that a build lacks is a compile or link error that
// names it. Throws Error(kDevice) for a device that this build or machine does not have.
template <class K, class... Args>
decltype(auto) launch(Device device, Args&&... args) {
  if (!device.is_cpu()) [[unlikely]]
    require_device(device, "launch");
  const KernelClock::Span span(KernelClock::current);
  return K::cpu(std::forward<Args>(args)...);
}

}  // namespace lockstep
