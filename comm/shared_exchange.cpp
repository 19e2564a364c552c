// What a SharedGroup does between single ranks: exchanges, where each rank has something else for
// each, and sends and receives. Straight between the ranks' buffers where all can be reached,
// otherwise through a pipe for every pair.

#include <algorithm>
#include <cstring>

#include "lockstep/comm/shared_await.h"
#include "lockstep/comm/shared_group.h"

namespace lockstep::comm {
namespace {

// The pipes of a rank together; each is as large as the number of ranks lets it be.
constexpr size_t kPipesBytes = size_t{1} << 20;
constexpr size_t kLeastPipeBytes = size_t{4} << 10;
// After this much work on others' buffers a rank looks whether somebody has left.
constexpr int64_t kLookBytes = int64_t{256} << 10;

}  // namespace

// One rank's end of the two pipes between it and another: the data are what it sends.
struct SharedGroup::Pipe {
  Member::Counter sent;   // bytes put into this pipe, ever
  Member::Counter taken;  // bytes taken out of the other rank's pipe to this one, ever
  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};

size_t SharedGroup::pipe_bytes(int size) {
  return std::max(kLeastPipeBytes, kPipesBytes / static_cast<size_t>(size) / 64 * 64);
}

size_t SharedGroup::staging_bytes(int size) {
  return chunk_bytes(size) + static_cast<size_t>(size) * (sizeof(Pipe) + pipe_bytes(size));
}

SharedGroup::Pipe& SharedGroup::pipe(int owner, int other) {
  std::byte* pipes = peers_[owner].staging + chunk_bytes(size());
  return *reinterpret_cast<Pipe*>(pipes +
                                  static_cast<size_t>(other) * (sizeof(Pipe) + pipe_bytes(size())));
}

size_t SharedGroup::try_send(int peer, const void* data, size_t bytes) {
  const size_t capacity = pipe_bytes(size());
  Pipe& mine = pipe(rank(), peer);
  uint64_t& put = moved_[peer].sent;
  const uint64_t taken = pipe(peer, rank()).taken.value.load();
  const size_t offset = put % capacity;
  // At most half at a time, so that both sides copy at once.
  const size_t now = std::min({bytes, capacity - (put - taken), capacity - offset, capacity / 2});
  if (now == 0) return 0;
  std::memcpy(mine.data() + offset, data, now);
  mine.sent.value.store(put += now);
  ring_if_asleep(peer);
  return now;
}

size_t SharedGroup::try_receive(int peer, void* data, size_t bytes) {
  const size_t capacity = pipe_bytes(size());
  Pipe& mine = pipe(rank(), peer);
  Pipe& theirs = pipe(peer, rank());
  uint64_t& taken = moved_[peer].taken;
  const uint64_t put = theirs.sent.value.load();
  const size_t offset = taken % capacity;
  const size_t now = std::min({bytes, put - taken, capacity - offset, capacity / 2});
  if (now == 0) return 0;
  std::memcpy(data, theirs.data() + offset, now);
  mine.taken.value.store(taken += now);
  ring_if_asleep(peer);
  return now;
}

void SharedGroup::wait(std::span<const Want> wants) {
  const size_t capacity = pipe_bytes(size());
  const auto may_go_on = [&](const Want& want) {
    const Moved& mine = moved_[want.peer];
    Pipe& theirs = pipe(want.peer, rank());
    const bool room = mine.sent - theirs.taken.value.load() < capacity;
    const bool data = theirs.sent.value.load() != mine.taken;
    return (want.to_send && room) || (want.to_receive && data);
  };
  await([&](int peer) {
    if (nudged_.load(std::memory_order_relaxed)) return true;
    const auto concerned = std::find_if(wants.begin(), wants.end(),
                                        [&](const Want& want) { return want.peer == peer; });
    if (concerned == wants.end()) return true;
    // A rank that is already at the next collective of all has put everything before it into its
    // pipe. Where nothing is there it asks for something else than this rank, and both would wait.
    const Arrival& next = peers_[peer].member->slots[(round_ + 1) % 2].arrival;
    const bool elsewhere = concerned->to_receive && next.round.load() == round_ + 1;
    if (std::any_of(wants.begin(), wants.end(), may_go_on)) return true;
    if (elsewhere) {
      throw mismatch(op_, {rank(), asked_}, {peer, Request::decode(next.code, next.count)});
    }
    return false;
  });
}

void SharedGroup::raise_frame(int peer, const Frame&, const Request&) {
  throw Error(ErrorCode::kInternal, op_, concat("rank ", peer, " sent a frame of no kind"));
}

void SharedGroup::nudge() noexcept {
  nudged_.store(true);
  ring_bell(self());
}

void SharedGroup::run(std::span<Transfer* const> transfers) {
  asked_ = transfers[0]->request;
  op_ = asked_.name();
  while (!nudged_.exchange(false)) {
    if (cancelled_.load()) throw Error(ErrorCode::kCancelled, op_, "the communicator was aborted");
    const bool moved = streams_.progress(transfers, *this);
    if (std::any_of(transfers.begin(), transfers.end(), [](auto* one) { return one->done(); })) {
      return;
    }
    if (!moved) streams_.wait(transfers, *this);
  }
}

// An exchange whose parts are many bytes, or are not the same for all.
void SharedGroup::exchange(const Collective& collective) {
  const std::vector<int64_t> own =
      collective.counts != nullptr ? collective.counts->table() : std::vector<int64_t>();
  const size_t table_bytes = own.size() * sizeof(int64_t);
  arrive(collective, own.data(), table_bytes, places_of(collective));
  std::vector<const int64_t*> tables(size());
  if (collective.counts != nullptr) {
    for (int peer = 0; peer < size(); ++peer) {
      tables[peer] = peer == rank() ? own.data()
                                    : reinterpret_cast<const int64_t*>(payload(peer, table_bytes));
    }
    check_tables(collective, tables);
  }
  // All ranks see the same tables and places, and so choose the same way.
  const auto gives = [&](int peer) {
    if (tables[peer] == nullptr) return collective.request.count != 0 && collective.gives(peer);
    return std::any_of(tables[peer], tables[peer] + size(), [](int64_t n) { return n != 0; });
  };
  bool moves = false;
  bool reachable = true;
  for (int peer = 0; peer < size(); ++peer) {
    moves = moves || gives(peer);
    reachable = reachable && (!gives(peer) || (told_places(peer).send & kForeign) == 0);
  }
  if (!moves) return;
  if (reachable) return read_parts(collective, tables);
  nudged_.store(false);  // it was about transfers
  streams_.exchange(collective, *this);
}

// Copies this rank's parts out of the others' buffers, and waits until all have done so.
void SharedGroup::read_parts(const Collective& collective, std::span<const int64_t* const> tables) {
  std::vector<const std::byte*> sends(size());
  for (int peer = 0; peer < size(); ++peer) {
    if (collective.received_part(peer, rank()).bytes == 0) continue;
    sends[peer] = peer == rank() ? static_cast<const std::byte*>(collective.send)
                                 : reach(peer, arrival(peer).send);
  }
  // See direct(): from here on nobody who leaves may free a buffer.
  self().touching.store(1);
  const auto somebody_left = [&] {
    return cancelled_.load() || std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
             return peer.member->left.load() != 0;
           });
  };
  bool left = somebody_left();
  for (int i = 0; i < size(); ++i) {
    const int peer = (rank() + i) % size();
    const Part part = collective.received_part(peer, rank());
    if (part.bytes == 0) continue;
    const std::byte* from = sends[peer] + collective.sent_part(peer, rank(), tables[peer]).offset;
    std::byte* to = static_cast<std::byte*>(collective.recv) + part.offset;
    if (to == from) continue;
    for (int64_t at = 0; at < part.bytes && !left; at += kLookBytes) {
      std::memcpy(to + at, from + at, std::min(kLookBytes, part.bytes - at));
      left = somebody_left();
    }
  }
  self().touching.store(0);
  if (!left) post(self().done, round_);
  await([&](int peer) { return !left && peers_[peer].member->done.value.load() >= round_; });
}

}  // namespace lockstep::comm
