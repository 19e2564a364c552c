#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/store.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

// Where the ranks of a world meet again after some of them are gone (Communicator::shrink): every
// rank has a small store of its own, since any rank may be the one that is lost.
struct ReunionPlaces {
  std::string secret;            // of the world; the token of these stores
  std::vector<Endpoint> stores;  // by rank of the world
  std::unique_ptr<StoreServer> own;
};

// What became of a reunion: the ranks that go on, ascending; `member` is the number of this one.
struct Reunion {
  std::vector<int> members;
  std::shared_ptr<Store> store;  // where they have met
};

// Meets the others of a group whose ranks are `world_ranks` in the world, as rank `rank` of it, at
// the store of the first of them that is still there. `name` is the same on every rank and used
// once. Returns the same ranks everywhere. Throws kTimeout on a rank that comes too late.
Reunion meet_again(const ReunionPlaces& places, const std::vector<int>& world_ranks, int rank,
                   const std::string& name, std::chrono::milliseconds wait);

// The same for the threads of one process: shared by all of a group.
class ThreadReunion {
 public:
  explicit ThreadReunion(int size) : size_(size) {}

  // Of a rank that goes on: its part of the new group.
  struct Outcome {
    std::vector<int> members;
    std::unique_ptr<Transport> transport;
    std::shared_ptr<ThreadReunion> reunion;
  };
  // From each rank that means to go on, once. Throws kTimeout on a rank that comes too late.
  Outcome meet(int rank, std::chrono::milliseconds wait, std::chrono::milliseconds timeout);
  // From each rank whose communicator goes.
  void leave(int rank);

 private:
  const int size_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::set<int> here_;
  std::set<int> gone_;
  bool closed_ = false;
  std::vector<int> members_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::shared_ptr<ThreadReunion> next_;
};

}  // namespace lockstep::comm
