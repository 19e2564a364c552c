#pragma once

#include <cstddef>

#include "lockstep/kernels/stream.h"
#include "lockstep/kernels/view.h"

namespace lockstep {

// y = x, bit for bit, from one device to another: contiguous views of one shape and dtype. Comes
// behind what is on the devices' current streams. Returns when memory of the CPU may be read or
// overwritten; between CUDA devices it is put on both streams. Throws Error(kDevice).
void transfer(const View& x, const View& y);

// Puts the same on `stream`, of a CUDA device that one of the two is on if one is, and does not
// wait: x must stay as it is, and y be left alone, until the stream has come by. Both may be let go
// before. Memory of the CPU is allocate_pinned()'s; other memory may be waited for.
// Throws Error(kInvalidArgument) for a stream of another device, Error(kDevice).
void transfer_async(const View& x, const View& y, const Stream& stream);
// The same of bytes, wherever they are that the stream's device reaches.
void copy_async(void* to, const void* from, size_t bytes, const Stream& stream);

// Whether memory is allocate_pinned()'s, and page-locked.
bool is_pinned(const void* memory);

}  // namespace lockstep
