#pragma once

#include "lockstep/kernels/view.h"

namespace lockstep {

// y = x, bit for bit, from one device to another: contiguous views of one shape and dtype. Returns
// when memory of the CPU may be read or overwritten; between CUDA devices it is put on both
// streams.
void transfer(const View& x, const View& y);

}  // namespace lockstep
