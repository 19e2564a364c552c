#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/kernels/device.h"

namespace lockstep {

// Alignment of every allocation on the CPU: one cache line, one AVX-512 vector.
inline constexpr size_t kCpuAlignment = 64;

// Counters of the caching allocator of one device, in bytes of whole blocks.
struct MemoryStats {
  int64_t in_use = 0;              // held by live allocations
  int64_t peak_in_use = 0;         // the most that in_use ever was
  int64_t cached = 0;              // free blocks over 512 bytes that are kept for reuse
  int64_t allocations = 0;         // calls of allocate, ever
  int64_t system_allocations = 0;  // of these, how many had to ask the system
};

// Memory of at least `bytes` bytes (zero bytes give a null pointer), not initialised, freed to a
// cache when the last owner lets go. Thread-safe. Throws Error(kOutOfMemory) that says how much was
// wanted and how much is in use.
std::shared_ptr<void> allocate(size_t bytes, Device device = kCpu);

MemoryStats memory_stats(Device device = kCpu);

// Gives cached blocks back to the system.
void empty_cache(Device device = kCpu);

}  // namespace lockstep
