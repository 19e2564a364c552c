#pragma once

#include <vector>

#include "lockstep/comm/shm_transport.h"
#include "lockstep/comm/socket.h"

namespace lockstep::comm {

// The connections of one rank over TCP, each authenticated with the group's secret.
struct TcpMesh {
  std::vector<Fd> control;  // to every other rank, by rank: small messages, and who leaves
  Fd to_next;               // large ones, in a ring
  Fd from_before;
};

// Connects the ranks of a group; every rank calls it. Strangers who connect meanwhile neither hold
// it up nor disturb it. Throws kTimeout naming the ranks that did not come.
TcpMesh connect_mesh(const Meeting& meeting);

}  // namespace lockstep::comm
