#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/hop.h"
#include "lockstep/comm/shm_transport.h"
#include "lockstep/comm/socket.h"

namespace lockstep::comm {

// The connections of one rank to ranks of other hosts, each authenticated with the group's secret.
struct TcpMesh {
  std::vector<Fd> control;  // to every other rank, by rank: small messages, and who leaves
  // Large ones, in a ring: over sockets, or through memory between ranks that share_memory().
  std::unique_ptr<SendHop> to_next;
  std::unique_ptr<ReceiveHop> from_before;
  // For people: "rank 1 by 2 sockets to 10.0.0.2", "rank 1 by shared memory".
  std::string next_text;
};

// Connects the ranks of a group; every rank calls it. Strangers who connect meanwhile neither hold
// it up nor disturb it. LOCKSTEP_SOCKETS is how many sockets a hop has (1 to 16): without it one to
// the same machine, two to another. Throws kTimeout naming the ranks that did not come.
TcpMesh connect_mesh(const Meeting& meeting);

}  // namespace lockstep::comm
