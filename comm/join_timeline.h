#pragma once

#include <chrono>

#include "lockstep/comm/store.h"
#include "lockstep/comm/world.h"

namespace lockstep::comm {

// Where a timeline is recorded: this process is a rank of `world`, and writes to the file of its
// host, with the job's beginning as 0. The first rank of each host makes its host's file: rank 0
// the one that LOCKSTEP_TIMELINE names, rank 8 on another host that name with ".8" behind; what is
// put behind the first file with `cat` is part of it. Between hosts times are as equal as their
// clocks.
//
// `store` is null in a world of one rank. Throws what Store::get throws.
void join_timeline(const World& world, Store* store, std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
