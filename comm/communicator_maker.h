#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/operation_queue.h"

namespace lockstep::comm {

struct ReunionPlaces;  // reunion.h
class ThreadReunion;

// Where a communicator comes from: what its descendants are made of.
struct Lineage {
  std::shared_ptr<Store> store;            // null between threads, and for one rank
  std::shared_ptr<ReunionPlaces> places;   // likewise
  std::shared_ptr<ThreadReunion> threads;  // of threads alone
  Options options;
  std::vector<int> world_ranks;  // by rank
};

// 0, 1, ..., n - 1: the lineage of a world.
std::vector<int> ranks_up_to(int n);

// The one way to a communicator: from a transport whose ranks are connected.
struct CommunicatorMaker {
  static std::shared_ptr<Communicator> make(std::unique_ptr<Transport> transport,
                                            Algorithm algorithm, Lineage lineage);
};

// connect() for a group whose ranks have other numbers in the world; options.name is the group's.
// `places` are the world's; null where the group is the world, which makes them.
std::shared_ptr<Communicator> connect_group(const World& group, std::shared_ptr<Store> store,
                                            const Options& options, std::vector<int> world_ranks,
                                            std::shared_ptr<ReunionPlaces> places);

}  // namespace lockstep::comm
