#pragma once

#include <memory>

#include "lockstep/comm/hop.h"

namespace lockstep::comm {

// A hop between two processes of one host: a ring of bytes in a memfd, and a Unix socket that wakes
// whoever sleeps, passes the memfd at the start, and ends when the other process does.
//
// `socket` is connected and authenticated, to rank `peer`. The sending side makes the memory and
// passes it. Both throw what send_with_fd() and receive_with_fd() throw, and kOutOfMemory.
std::unique_ptr<SendHop> make_shm_send_hop(Fd socket, int peer);
std::unique_ptr<ReceiveHop> make_shm_receive_hop(Fd socket, int peer, Deadline deadline);

}  // namespace lockstep::comm
