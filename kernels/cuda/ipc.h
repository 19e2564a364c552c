#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/kernels/stream.h"

// Device memory that processes of one host share, and words of memory of the host by which their
// streams wait for each other. Throws Error(kDevice) that names CUDA's call and error.
namespace lockstep::cuda {

// What another process needs to find memory of this one.
struct IpcHandle {
  std::array<std::byte, 64> bytes = {};
};

// Of a whole block of take_memory(), which must not be freed while others have it mapped.
IpcHandle export_memory(void* block, Device device);
// Another process's block, for kernels of `device`; mapped until the last owner lets go.
std::shared_ptr<void> import_memory(const IpcHandle& handle, Device device);

// Lets streams of `device` write and read words in whole pages of the host's memory, which
// processes may share, until the last owner lets go. Points to where they are for the device.
std::shared_ptr<void> register_words(void* pages, size_t bytes, Device device);

// Whether the device's streams can set such words and wait for them, as those of some cannot.
bool has_words(Device device);

// Sets a word of such pages (its address on the device), behind all that was put on the stream
// before: whoever sees the value finds what that has written.
void set_word(void* word, uint64_t value, const Stream& stream);
// What is put on the stream after this call runs once the word is at least `value`, by less than
// 2^63, whoever writes it.
void wait_for_word(void* word, uint64_t value, const Stream& stream);

}  // namespace lockstep::cuda
