// Communicator::shrink: what is left of a group goes on.

#include <algorithm>
#include <utility>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/communicator_maker.h"
#include "lockstep/comm/reunion.h"
#include "lockstep/comm/text.h"

namespace lockstep::comm {

std::shared_ptr<Communicator> Communicator::shrink(std::chrono::milliseconds wait) {
  if (wait.count() <= 0) wait = timeout();
  queue_->abort("it went on with those ranks that are left");
  Lineage lineage;
  lineage.options = lineage_->options;
  lineage.options.timeout = timeout();
  const auto keep = [&](const std::vector<int>& members) {
    for (const int member : members) lineage.world_ranks.push_back(world_rank(member));
  };
  if (lineage_->threads != nullptr) {
    ThreadReunion::Outcome outcome = lineage_->threads->meet(rank(), wait, timeout());
    keep(outcome.members);
    lineage.threads = std::move(outcome.reunion);
    return CommunicatorMaker::make(std::move(outcome.transport), algorithm_, std::move(lineage));
  }
  World group;  // of one rank, unless others are left
  std::shared_ptr<Store> store;
  std::vector<int> members = {0};
  if (size() > 1) {
    std::string name = concat("shrink/", lineage_->options.name, "/", ++shrinks_);
    Reunion reunion = meet_again(*lineage_->places, lineage_->world_ranks, rank(), name, wait);
    members = std::move(reunion.members);
    store = std::move(reunion.store);
    lineage.options.name = std::move(name);
  }
  keep(members);
  group.size = static_cast<int>(members.size());
  group.rank =
      static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  group.local_rank = group.rank;
  group.local_size = group.size;
  return connect_group(group, std::move(store), lineage.options, std::move(lineage.world_ranks),
                       lineage_->places);
}

}  // namespace lockstep::comm
