#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/kernels/device.h"
#include "lockstep/kernels/stream.h"

namespace lockstep {

// Alignment of every allocation on the CPU: one cache line, one AVX-512 vector.
inline constexpr size_t kCpuAlignment = 64;

// The bytes of the block that `bytes` are given: caches keep blocks by their exact size, which is
// rounded up in coarse steps so that tensors of nearly the same size share blocks. At most an
// eighth of a block is wasted.
size_t block_size(size_t bytes);

// Counters of the caching allocator of one device, in bytes of whole blocks.
struct MemoryStats {
  int64_t in_use = 0;              // held by live allocations
  int64_t peak_in_use = 0;         // the most that in_use ever was
  int64_t cached = 0;              // free blocks that are kept for reuse; of the CPU's those over
                                   // 512 bytes
  int64_t allocations = 0;         // calls of allocate, ever
  int64_t system_allocations = 0;  // of these, how many had to ask the system
  int64_t across_streams = 0;      // of these, how many were a block that another stream had used

  friend bool operator==(const MemoryStats&, const MemoryStats&) = default;
};

// Memory of at least `bytes` bytes (zero bytes give a null pointer), not initialised, freed to a
// cache when the last owner lets go. Thread-safe. Throws Error(kOutOfMemory) that says how much was
// wanted, how much is in use and, on a CUDA device, by blocks of which sizes.
//
// On a CUDA device memory belongs to the stream that is current when it is allocated, and may be
// used there at once. What is put on that stream, and on the one that is current in the thread that
// lets it go, may still use it then: a block is used again by others only behind an event.
std::shared_ptr<void> allocate(size_t bytes, Device device = kCpu);

// The same of the CPU's memory, page-locked: CUDA devices copy to and from it while the host goes
// on. Plain memory where there is no such device.
std::shared_ptr<void> allocate_pinned(size_t bytes);

// Says that work on `stream` uses the block that `memory` points into, which was allocated for
// another stream: it is used again only after what is on `stream` when the last owner lets it go.
// Likewise for a communicator's memory of a device; nothing for all other memory.
void used_on(const void* memory, const Stream& stream);

// Whether `stream`, a device's, is the only one that `memory` is for: it was allocated for it, and
// nobody has said that others use it. False for a communicator's memory.
bool is_of_one_stream(const void* memory, const Stream& stream);

// Where memory lies: kCpu for all that is not a CUDA device's. Throws Error(kDevice).
Device device_of(const void* memory);
// The same for memory that is a CUDA device's only if allocate(), or a communicator, gave it: of
// memory of the host it costs next to nothing, where device_of() asks CUDA.
Device device_of_ours(const void* memory);

// Throws Error(kDevice) for a device that is not there.
MemoryStats memory_stats(Device device = kCpu);
// Zeros where pinned memory is plain memory.
MemoryStats pinned_memory_stats();

// Gives cached blocks back to the system; those of pinned memory with the CPU's. Of a CUDA device,
// and of pinned memory, it waits for what still uses them.
void empty_cache(Device device = kCpu);

}  // namespace lockstep
