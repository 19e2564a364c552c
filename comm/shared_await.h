#pragma once

// SharedGroup::await, for the files of that class.

#include <sched.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/comm/futex.h"
#include "lockstep/comm/shared_group.h"
#include "lockstep/comm/text.h"

namespace lockstep::comm {

// Ranks that run are here within a few microseconds of each other: watch for that long. Then let
// other threads run in between, then sleep, for a rank that is late may be very late.
inline constexpr int kSpins = 300;
inline constexpr std::chrono::microseconds kYielding{2000};
inline constexpr std::chrono::microseconds kYieldingCrowded{500};
// How often a sleeper looks whether those it waits for are alive.
inline constexpr std::chrono::milliseconds kSleep{20};

template <class Ready>
void SharedGroup::await(const Ready& ready) {
  int peer = 0;
  const auto all_ready = [&] {
    while (peer < size() && (peer == rank() || ready(peer))) ++peer;
    return peer == size();
  };
  const int spins = crowded_ ? 0 : kSpins;
  bool done = all_ready();
  for (int i = 0; i < spins && !done; ++i) {
    relax();
    done = all_ready();
  }
  // Only now: the order of a store before these looks at who sleeps costs as long as the store
  // takes to reach the others, in which this rank has looked for theirs.
  if (std::exchange(bells_due_, false)) {
    order_stores();
    ring_bells();
  }
  if (done) return;
  const Deadline start = Clock::now();
  while (Clock::now() - start < (crowded_ ? kYieldingCrowded : kYielding)) {
    sched_yield();
    if (all_ready()) return;
  }
  const Deadline deadline = deadline_after(patience(asked_));
  while (!all_ready()) sleep_or_raise(ready, deadline);
}

template <class Ready>
void SharedGroup::sleep_or_raise(const Ready& ready, Deadline deadline) {
  const auto is_ready = [&](int peer) { return peer == rank() || ready(peer); };
  Member& me = self();
  me.beat.fetch_add(1, std::memory_order_relaxed);
  const uint32_t bell = me.bell.load();
  me.sleeping.store(1);
  // Whoever changes something after this has seen that this rank sleeps; what changed before it is
  // seen here.
  bool wake = cancelled_.load();
  bool all = true;
  for (int peer = 0; peer < size(); ++peer) {
    const bool peer_ready = is_ready(peer);
    all = all && peer_ready;
    wake = wake || (!peer_ready && peers_[peer].member->left.load() != 0);
  }
  if (!wake && !all) futex_wait(me.bell, bell, kSleep);
  me.sleeping.store(0);

  if (cancelled_.load()) {
    throw Error(ErrorCode::kCancelled, op_, "the communicator was aborted");
  }
  std::vector<int> late;
  for (int peer = 0; peer < size(); ++peer) {
    // In this order: what a rank did before it left or died counts.
    const bool dead = is_dead(peer);
    const bool left = peers_[peer].member->left.load() != 0;
    if (is_ready(peer)) continue;
    if (left) raise_left(peer);
    if (dead) {
      throw Error(ErrorCode::kPeerLost, op_,
                  concat("rank ", peer, " died: its process ended without leaving the group"));
    }
    late.push_back(peer);
  }
  if (!late.empty() && Clock::now() >= deadline) raise_late(late);
}

}  // namespace lockstep::comm
