#pragma once

#include <cstddef>

#include "lockstep/kernels/stream.h"
#include "lockstep/kernels/view.h"

namespace lockstep {

// y = x, bit for bit, from one device to another: contiguous views of one shape and dtype. Returns
// when memory of the CPU may be read or overwritten; between CUDA devices it is put on both
// streams.
void transfer(const View& x, const View& y);

// Puts the same on `stream`, of a device that one of the two is on, and does not wait: x must stay
// as it is, and y be left alone, until the stream has come by. Both may be let go before. Memory of
// the CPU is allocate_pinned()'s; other memory may be waited for.
void transfer_async(const View& x, const View& y, const Stream& stream);
// The same of bytes, wherever they are.
void copy_async(void* to, const void* from, size_t bytes, const Stream& stream);

}  // namespace lockstep
