#include "lockstep/comm/reunion.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "lockstep/comm/text.h"
#include "lockstep/comm/thread_transport.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kOp = "shrink";
constexpr std::chrono::milliseconds kLook{10};
// A process that is there takes a connection at once; a host that is gone answers nothing.
constexpr std::chrono::milliseconds kAnswer{1000};

bool is_there(const Endpoint& store) {
  std::string reason;
  return static_cast<bool>(try_connect_tcp(store, deadline_after(kAnswer), kOp, reason));
}

// Null where nobody is there any more, or somebody who does not answer: a process that is stopped
// takes connections all the same. Tried in short turns, since it may go at any moment.
std::shared_ptr<Store> reach(const Endpoint& where, const std::string& secret, Deadline deadline) {
  while (is_there(where)) {
    try {
      return std::make_shared<Store>(where, secret, "", kAnswer);
    } catch (const Error& error) {
      const bool gone = error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPeerLost;
      if (!gone) throw;
      if (Clock::now() >= deadline) break;
    }
  }
  return nullptr;
}

Error too_late(int rank) {
  return Error(ErrorCode::kTimeout, kOp,
               concat("rank ", rank, " came after the others had gone on without it"));
}

// Meets the others at one of the stores.
std::vector<int> meet_at(Store& store, const ReunionPlaces& places,
                         const std::vector<int>& world_ranks, int rank, const std::string& name,
                         Deadline deadline) {
  const auto here = [&](int other) { return concat(name, "/here/", other); };
  store.set(here(rank), "yes");
  std::set<int> missing;
  for (int other = 0; other < static_cast<int>(world_ranks.size()); ++other) missing.insert(other);
  while (!missing.empty() && Clock::now() < deadline) {
    std::erase_if(missing, [&](int other) {
      return store.try_get(here(other)) || !is_there(places.stores[world_ranks[other]]);
    });
    if (!missing.empty()) std::this_thread::sleep_for(kLook);
  }
  // Who is first to see that says for all who is there.
  const std::string members = concat(name, "/members");
  if (store.add(concat(name, "/deciding"), 1) == 1) {
    std::string list;
    for (int other = 0; other < static_cast<int>(world_ranks.size()); ++other) {
      if (store.try_get(here(other))) list += concat(other, " ");
    }
    store.set(members, list);
  }
  std::vector<int> out;
  const std::string list = store.get(members, kAnswer);
  for (size_t at = 0; at < list.size();) {
    const size_t end = list.find(' ', at);
    int member = 0;
    check(parse_number(std::string_view(list).substr(at, end - at), member), kOp,
          "the list of those who are there is spoiled");
    out.push_back(member);
    at = end + 1;
  }
  if (std::find(out.begin(), out.end(), rank) == out.end()) throw too_late(rank);
  return out;
}

}  // namespace

Reunion meet_again(const ReunionPlaces& places, const std::vector<int>& world_ranks, int rank,
                   const std::string& name, std::chrono::milliseconds wait) {
  for (int host = 0; host < static_cast<int>(world_ranks.size()); ++host) {
    const Endpoint& where = places.stores[world_ranks[host]];
    try {
      std::shared_ptr<Store> store = reach(where, places.secret, deadline_after(wait));
      if (store == nullptr) continue;
      std::vector<int> members =
          meet_at(*store, places, world_ranks, rank, name, deadline_after(wait));
      return {std::move(members), std::move(store)};
    } catch (const Error& error) {
      const bool gone = error.code() == ErrorCode::kPeerLost ||
                        (error.code() == ErrorCode::kTimeout && error.op() != kOp);
      if (host == rank || !gone) throw;
    }
  }
  throw Error(ErrorCode::kPeerLost, kOp, "no rank is there to meet at");
}

ThreadReunion::Outcome ThreadReunion::meet(int rank, std::chrono::milliseconds wait,
                                           std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (closed_) throw too_late(rank);
  here_.insert(rank);
  changed_.notify_all();
  changed_.wait_for(lock, wait, [&] {
    return closed_ || static_cast<int>(here_.size() + gone_.size()) == size_;
  });
  if (!std::exchange(closed_, true)) {
    members_.assign(here_.begin(), here_.end());
    const auto size = static_cast<int>(members_.size());
    transports_ = make_thread_transports(size, timeout);
    next_ = std::make_shared<ThreadReunion>(size);
    changed_.notify_all();
  }
  const auto place = std::find(members_.begin(), members_.end(), rank) - members_.begin();
  check(static_cast<size_t>(place) < transports_.size(), kOp,
        "the threads' group could not be made");
  return {members_, std::move(transports_[place]), next_};
}

void ThreadReunion::leave(int rank) {
  const std::lock_guard lock(mutex_);
  if (!here_.contains(rank)) gone_.insert(rank);
  changed_.notify_all();
}

}  // namespace lockstep::comm
