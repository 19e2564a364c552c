// Communicator::split: groups of a group.

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "lockstep/comm/collective.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/communicator_maker.h"
#include "lockstep/comm/reunion.h"
#include "lockstep/comm/text.h"
#include "lockstep/comm/thread_transport.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kOp = "split";

// What each rank tells all others first.
struct Wish {
  int64_t color;
  int64_t key;
  uint64_t number;  // random: that of a group's first rank names the group
};

// What each rank tells all others last.
struct Outcome {
  int32_t failed;
  std::array<char, 252> message;
};

// What the threads of a group have from its first rank, in whose memory it lies.
struct Offer {
  std::vector<std::unique_ptr<Transport>> transports;  // by rank
  std::shared_ptr<ThreadReunion> reunion;
};

uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// The ranks of `color` in the order of their keys.
std::vector<int> members_of(const std::vector<Wish>& wishes, int64_t color) {
  std::vector<int> members;
  for (size_t rank = 0; rank < wishes.size(); ++rank) {
    if (wishes[rank].color == color) members.push_back(static_cast<int>(rank));
  }
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return wishes[a].key < wishes[b].key; });
  return members;
}

}  // namespace

template <class T>
std::vector<T> Communicator::tell_all(const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(size());
  // The transport's own choice of an algorithm: these are a few bytes.
  Collective collective{{Kind::kSplit, DType::kU8, ReduceOp::kSum, Algorithm::kAuto, 0, sizeof(T)},
                        0,
                        &mine,
                        all.data()};
  start(std::move(collective), nullptr, nullptr).wait();
  return all;
}

std::shared_ptr<Communicator> Communicator::split(int color, int key) {
  check(color >= 0 || color == kNoColor, kOp,
        [&] { return concat("want a color of 0 or more, or kNoColor, got ", color); });
  const std::vector<Wish> wishes = tell_all(Wish{color, key, random_number()});
  const std::vector<int> members =
      color == kNoColor ? std::vector<int>{rank()} : members_of(wishes, color);
  const int first = members[0];
  World group;
  group.size = static_cast<int>(members.size());
  group.rank =
      static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  group.local_rank = group.rank;
  group.local_size = group.size;
  Options options = lineage_->options;
  options.timeout = timeout();
  options.name = concat("split/", wishes[first].number);
  std::vector<int> world_ranks;
  for (const int member : members) world_ranks.push_back(world_rank(member));

  std::shared_ptr<Communicator> made;
  std::optional<Failure> failure;
  const auto attempt = [&](const auto& step) {
    try {
      if (color != kNoColor && !failure) step();
    } catch (...) {
      failure = Failure::current(kOp);
    }
  };
  Offer offer;
  const bool threads = lineage_->threads != nullptr;
  attempt([&] {
    if (!threads) {
      made = connect_group(group, lineage_->store, options, world_ranks, lineage_->places);
    } else if (first == rank()) {
      offer.reunion = std::make_shared<ThreadReunion>(group.size);
      offer.transports = make_thread_transports(group.size, timeout());
    }
  });
  if (threads) {
    // The first ranks keep what they show until all have told their outcome.
    const std::vector<Offer*> offers = tell_all(&offer);
    attempt([&] {
      const Offer& mine = *offers[first];
      check(!mine.transports.empty(), kOp, "the group's first rank could not make it");
      made = CommunicatorMaker::make(std::move(offers[first]->transports[group.rank]), algorithm_,
                                     {nullptr, nullptr, mine.reunion, options, world_ranks});
    });
  }

  Outcome mine{failure ? 1 : 0, {}};
  if (failure) failure->message.copy(mine.message.data(), mine.message.size() - 1);
  const std::vector<Outcome> outcomes = tell_all(mine);
  if (failure) failure->raise();
  for (int other = 0; other < size(); ++other) {
    if (outcomes[other].failed == 0) continue;
    throw Error(
        ErrorCode::kPeerLost, kOp,
        concat("rank ", other, " could not join its new group: ", outcomes[other].message.data()));
  }
  return made;
}

int Communicator::world_rank(int rank) const {
  check(rank >= 0 && rank < size(), "world_rank",
        [&] { return concat("want a rank in [0, ", size(), "), got ", rank); });
  return lineage_->world_ranks[rank];
}

}  // namespace lockstep::comm
