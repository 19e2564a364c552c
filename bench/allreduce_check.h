#pragma once

#include <cstdint>

#include "lockstep/comm/communicator.h"

namespace bench {

// Writes a rank's input: small whole numbers that differ by rank and index, whose sum, least,
// largest and product over up to 64 ranks are exact in every dtype whatever the order.
void fill_input(void* data, int64_t count, lockstep::DType dtype, lockstep::comm::ReduceOp op,
                int rank);

// How many elements of an all_reduce of fill_input() over `ranks` ranks are wrong: not equal, or
// for the average of floats more than 2 units in the last place away. Every element is looked at.
int64_t count_wrong(const void* data, int64_t count, lockstep::DType dtype,
                    lockstep::comm::ReduceOp op, int ranks);

}  // namespace bench
