#pragma once

#include <string>

#include "lockstep/comm/socket.h"

namespace lockstep::comm {

// The address under which other ranks reach this process: of the interface that LOCKSTEP_IFNAME
// names (an interface such as "eth0", or an address of one), else of the one that routes to
// `store`. Throws kInvalidArgument, with the names there are, where no interface has that name; kIo
// where nothing routes there.
std::string reachable_address(const Endpoint& store);

}  // namespace lockstep::comm
