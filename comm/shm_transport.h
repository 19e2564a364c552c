#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/store.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

// What the ranks of a group need to find and to trust each other.
struct Meeting {
  int rank = 0;
  int size = 1;
  std::shared_ptr<Store> store;
  Gathering* gathering = nullptr;  // waits for other ranks are cut short where one of them fails
  std::string prefix;              // of this group's keys in the store
  std::string secret;              // known to this group's ranks alone
  std::chrono::milliseconds timeout{0};
  // By rank, what tells hosts apart: ranks of one text can share memory. Empty where every hop goes
  // over sockets whoever shares a host.
  std::vector<std::string> hosts;

  bool shares_memory(int a, int b) const { return !hosts.empty() && hosts[a] == hosts[b]; }
};

// A group of processes of one host (or threads, for tests). Each rank has one memfd that the others
// map: its Member, its staging area, and what it allocates. The descriptors go through Unix sockets
// in the abstract namespace whose other end must be of the same user and prove the group's secret;
// nothing is ever on disk or in /dev/shm, and everything ends with the last process.
//
// A rank that dies is noticed by its socket.
std::unique_ptr<Transport> make_shm_transport(const Meeting& meeting);

}  // namespace lockstep::comm
