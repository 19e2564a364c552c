#pragma once

#include "lockstep/comm/collective.h"

namespace lockstep::comm {

// The second half of a collective in one shot: every rank has every rank's payload, elements
// [first, last) of its send, and makes its own result of them. payloads[peer] is where they are; of
// a broadcast or a scatter only the root's is read. REQUIRES of an exchange: equal counts, and all
// elements at once.
void finish_one_shot(const Collective& collective, int rank, int size, int64_t first, int64_t last,
                     const std::byte* const* payloads);

}  // namespace lockstep::comm
