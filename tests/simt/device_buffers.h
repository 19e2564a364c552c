#pragma once

// Buffers of a CUDA device for tests of collectives.

#include <cstring>
#include <memory>
#include <span>

#include "../comm/collective_cases.h"
#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/transfer.h"

namespace lockstep::comm {

// Memory of a rank's device that holds these bytes, copied there on the current stream.
inline std::shared_ptr<void> on_device(Device device, const Bytes& bytes) {
  std::shared_ptr<void> memory = allocate(bytes.size(), device);
  const auto count = static_cast<int64_t>(bytes.size());
  const View from{const_cast<std::byte*>(bytes.data()), DType::kU8, kCpu, {count}, {1}};
  transfer(from, {memory.get(), DType::kU8, device, {count}, {1}});
  return memory;
}

inline Bytes from_device(Device device, const void* data, size_t bytes) {
  Bytes out(bytes);
  const auto count = static_cast<int64_t>(bytes);
  const View from{const_cast<void*>(data), DType::kU8, device, {count}, {1}};
  transfer(from, {out.data(), DType::kU8, kCpu, {count}, {1}});
  return out;
}
inline Bytes from_device(Device device, const std::shared_ptr<void>& memory, size_t bytes) {
  return from_device(device, memory.get(), bytes);
}

}  // namespace lockstep::comm
