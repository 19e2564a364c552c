#pragma once

#include <memory>

#include "lockstep/comm/shm_transport.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

// A group of processes that reach each other over TCP. Small collectives go in one shot: every rank
// sends its payload to every other. Large ones go around the ring, on connections of their own.
// What a rank asks for goes to all others beside it. `crowded`: this host has more ranks than
// cores, so that waiting must not keep a core busy.
std::unique_ptr<Transport> make_tcp_transport(const Meeting& meeting, bool crowded);

}  // namespace lockstep::comm
