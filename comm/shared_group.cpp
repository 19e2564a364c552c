#include "lockstep/comm/shared_group.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>

#include "lockstep/comm/one_shot.h"
#include "lockstep/comm/shared_await.h"

namespace lockstep::comm {
namespace {

// A rank that leaves waits this long for others to stop touching its buffers: far longer than one
// that runs needs, and not so long that the error of one that is stopped comes much too late.
constexpr std::chrono::seconds kQuiet{2};

// Who waits beats several times within this, even on a loaded machine.
constexpr std::chrono::milliseconds kBeats{300};

void copy_text(std::string_view text, std::span<char> out) {
  const size_t bytes = std::min(text.size(), out.size() - 1);
  std::memcpy(out.data(), text.data(), bytes);
  out[bytes] = '\0';
}

}  // namespace

SharedGroup::SharedGroup(int rank, int size, std::chrono::milliseconds timeout)
    : Transport(rank, size, timeout),
      peers_(size),
      streams_(rank, size),
      moved_(static_cast<size_t>(size)),
      payloads_(size),
      sources_(size) {}

void SharedGroup::run(const Collective& collective) {
  op_ = collective.request.name();
  if (cancelled_.load()) throw Error(ErrorCode::kCancelled, op_, "the communicator was aborted");
  asked_ = collective.request;
  const auto bytes = static_cast<size_t>(collective.send_bytes(size()));
  if (collective.exchanges()) {
    const bool small = prefers_one_shot(bytes) && collective.counts == nullptr;
    return small ? one_shot(collective) : exchange(collective);
  }
  switch (collective.request.algorithm) {
    case Algorithm::kAuto:
      if (prefers_one_shot(bytes)) return one_shot(collective);
      if (!prefers_eager(bytes)) return two_shot(collective);
      return collective.request.kind == Kind::kAllReduce ? eager(collective) : one_shot(collective);
    case Algorithm::kOneShot:
      return one_shot(collective);
    case Algorithm::kTwoShot:
      return two_shot(collective);
    case Algorithm::kRing:
      arrive(collective, nullptr, 0);
      if (size() == 1) return one_shot_piece(collective, 0, collective.request.count);
      return run_ring(collective, rank(), size(), *this);
  }
}

void SharedGroup::meet(const Collective& collective, const void* mine, size_t bytes, void* all) {
  op_ = collective.request.name();
  if (cancelled_.load()) throw Error(ErrorCode::kCancelled, op_, "the communicator was aborted");
  asked_ = collective.request;
  arrive(collective, mine, bytes);
  for (int peer = 0; peer < size(); ++peer) {
    if (bytes != 0) {
      std::memcpy(static_cast<std::byte*>(all) + static_cast<size_t>(peer) * bytes,
                  payload(peer, bytes), bytes);
    }
  }
}

void SharedGroup::start_touching() {
  self().touching.store(1);
  if (!somebody_left()) return;
  stop_touching();
  await([](int) { return false; });  // throws what made it stop
}

void SharedGroup::stop_touching() { self().touching.store(0); }

bool SharedGroup::await_untouched(Deadline deadline) noexcept {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    while (peers_[peer].member->touching.load() != 0 && !is_dead(peer)) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::yield();
    }
  }
  return true;
}

void SharedGroup::post_queued(uint64_t value) { post(self().queued, value); }

void SharedGroup::await_queued(int peer, uint64_t value) {
  await([&](int other) {
    return other != peer || peers_[peer].member->queued.value.load() >= value;
  });
}

int SharedGroup::find_dead() {
  for (int peer = 0; peer < size(); ++peer) {
    // In this order: a rank that leaves says so before its process ends.
    if (peer != rank() && is_dead(peer) && !has_left(peer)) return peer;
  }
  return -1;
}

void SharedGroup::leave(const Failure& why) noexcept {
  Member& me = self();
  me.left_code = static_cast<uint32_t>(why.code);
  copy_text(why.op, me.left_op);
  copy_text(why.message, me.left_message);
  me.left.store(1);
  ring_bells();
  // Whoever began to touch buffers before `left` was set stops at its next look.
  await_untouched(deadline_after(kQuiet));
}

void SharedGroup::cancel() noexcept {
  cancelled_.store(true);
  ring_bell(self());
}

void SharedGroup::raise_left(int peer) {
  const Member& member = *peers_[peer].member;
  raise_departure(static_cast<ErrorCode>(member.left_code), op_, peer, member.left_message.data());
}

void SharedGroup::raise_late(const std::vector<int>& late) {
  // A rank that this one waits for may itself wait for another. Who waits beats, so that whoever
  // does not beat for a while is stopped, or busy with something else.
  std::vector<uint32_t> beats(size());
  for (int peer = 0; peer < size(); ++peer) beats[peer] = peers_[peer].member->beat.load();
  const Deadline end = deadline_after(kBeats);
  while (Clock::now() < end) {
    self().beat.fetch_add(1, std::memory_order_relaxed);
    std::this_thread::sleep_for(kBeats / 10);
  }
  std::vector<int> stalled;
  for (int peer = 0; peer < size(); ++peer) {
    const Member& member = *peers_[peer].member;
    const bool left = member.left.load() != 0;
    if (peer != rank() && !left && member.beat.load() == beats[peer]) stalled.push_back(peer);
  }
  throw timed_out(op_, rank(), patience(asked_), stalled.empty() ? late : stalled);
}

void SharedGroup::post(Member::Counter& counter, uint64_t value) {
  counter.value.store(value);
  ring_bells();
}

void SharedGroup::store_before_await(std::atomic<uint64_t>& word, uint64_t value) {
  word.store(value, std::memory_order_release);
  bells_due_ = true;
}

void SharedGroup::ring_bells() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) ring_if_asleep(peer);
  }
}

void SharedGroup::ring_if_asleep(int peer) {
  Member& member = *peers_[peer].member;
  if (member.sleeping.load() != 0) ring_bell(member);
}

void SharedGroup::ring_bell(Member& member) {
  member.bell.fetch_add(1);
  futex_wake(member.bell);
}

Places SharedGroup::places_of(const Collective& collective) {
  const auto place = [&](const void* data, int64_t bytes) {
    const Place mapped = place_of(data, static_cast<size_t>(bytes));
    return mapped != 0 ? mapped : kForeign | std::bit_cast<Place>(data);
  };
  const int64_t send_bytes = collective.send_bytes(size());
  const int64_t recv_bytes = collective.recv_bytes(size());
  const Place send = place(collective.send, send_bytes);
  const bool same = collective.send == collective.recv && send_bytes == recv_bytes;
  return {send, same ? send : place(collective.recv, recv_bytes)};
}

Places SharedGroup::told_places(int peer) {
  if (peer == rank()) return places_;
  return {arrival(peer).send, arrival(peer).recv};
}

void SharedGroup::arrive(const Collective& collective, const void* payload, size_t payload_bytes,
                         const Places& places) {
  ++round_;
  Member::Slot& slot = self().slots[round_ % 2];
  Arrival& mine = slot.arrival;
  const uint64_t code = collective.request.code();
  const int64_t count = collective.request.count;
  mine.code = code;
  mine.count = count;
  mine.send = places.send;
  mine.recv = places.recv;
  places_ = places;
  if (payload_bytes != 0) {
    std::byte* to =
        payload_bytes <= Arrival::kInlineBytes ? mine.inline_payload.data() : slot.payload.data();
    std::memcpy(to, payload, payload_bytes);
  }
  store_before_await(mine.round, round_);
  await([&](int peer) {
    const Arrival& theirs = arrival(peer);
    if (theirs.round.load() != round_) return false;
    if (theirs.code != code || theirs.count != count) raise_mismatch(collective);
    return true;
  });
}

const std::byte* SharedGroup::payload(int peer, size_t bytes) {
  const Member::Slot& slot = peers_[peer].member->slots[round_ % 2];
  return bytes <= Arrival::kInlineBytes ? slot.arrival.inline_payload.data() : slot.payload.data();
}

void SharedGroup::raise_mismatch(const Collective& collective) {
  std::vector<Asked> asked;
  for (int peer = 0; peer < size(); ++peer) {
    const Arrival& theirs = arrival(peer);
    if (theirs.round.load() != round_) continue;
    asked.push_back({peer, Request::decode(theirs.code, theirs.count)});
  }
  throw mismatch(op_, collective.sequence, asked);
}

// One shot: the payloads come with the arrivals, and every rank folds them all. Longer buffers go
// in pieces, each an arrival of its own.
void SharedGroup::one_shot(const Collective& collective) {
  constexpr auto kPiece = static_cast<int64_t>(Member::kPayloadBytes);
  const int64_t element = collective.element_size();
  const int64_t all = collective.send_bytes(size());
  int64_t first = 0;
  do {
    const int64_t bytes = std::min(kPiece, all - first);
    arrive(collective, static_cast<const std::byte*>(collective.send) + first,
           collective.gives(rank()) ? static_cast<size_t>(bytes) : 0);
    one_shot_piece(collective, first / element, (first + bytes) / element);
    first += bytes;
  } while (first < all);
}

// Sizes at which one shot is the fastest for plain memory, and two-shot for memory that all map:
// payloads come with the arrivals of ranks whose buffers are plain.
void SharedGroup::eager(const Collective& collective) {
  const auto bytes = static_cast<size_t>(collective.send_bytes(size()));
  const auto plain = [](const Places& places) {
    return ((places.send | places.recv) & kForeign) != 0;
  };
  const Places mine = places_of(collective);
  arrive(collective, collective.send, plain(mine) ? bytes : 0, mine);
  int payloads = 0;
  for (int peer = 0; peer < size(); ++peer) payloads += plain(told_places(peer)) ? 1 : 0;
  if (payloads == 0) return direct(collective);
  if (payloads == size()) return one_shot_piece(collective, 0, collective.request.count);
  one_shot(collective);  // some are mapped and others are not: all give theirs
}

// Elements [first, last) of send, whose payloads have come.
void SharedGroup::one_shot_piece(const Collective& collective, int64_t first, int64_t last) {
  const int64_t element = collective.element_size();
  const auto bytes = static_cast<size_t>((last - first) * element);
  for (int peer = 0; peer < size(); ++peer) {
    payloads_[peer] = peer == rank()
                          ? static_cast<const std::byte*>(collective.send) + first * element
                          : payload(peer, bytes);
  }
  finish_one_shot(collective, rank(), size(), first, last, payloads_.data());
}

size_t SharedGroup::try_send(const void* data, size_t bytes) {
  const size_t capacity = chunk_bytes(size());
  uint64_t& put = in_ring_.sent;
  const uint64_t taken = peers_[(rank() + 1) % size()].member->taken.value.load();
  const size_t offset = put % capacity;
  const size_t room = std::min(capacity - (put - taken), capacity - offset);
  const size_t now = std::min({bytes, room, capacity / 4});
  if (now == 0) return 0;
  std::memcpy(peers_[rank()].staging + offset, data, now);
  post(self().sent, put += now);
  return now;
}

size_t SharedGroup::try_receive(void* data, size_t bytes) {
  const size_t capacity = chunk_bytes(size());
  const Peer& from = peers_[(rank() + size() - 1) % size()];
  uint64_t& taken = in_ring_.taken;
  const uint64_t put = from.member->sent.value.load();
  const size_t offset = taken % capacity;
  const size_t there = std::min<size_t>(put - taken, capacity - offset);
  const size_t now = std::min({bytes, there, capacity / 4});
  if (now == 0) return 0;
  std::memcpy(data, from.staging + offset, now);
  post(self().taken, taken += now);
  return now;
}

void SharedGroup::wait(bool to_send, bool to_receive) {
  const size_t capacity = chunk_bytes(size());
  const int next = (rank() + 1) % size();
  const int before = (rank() + size() - 1) % size();
  await([&](int peer) {
    const bool moves =
        (to_send && in_ring_.sent - peers_[next].member->taken.value.load() < capacity) ||
        (to_receive && peers_[before].member->sent.value.load() != in_ring_.taken);
    const bool concerned = (to_send && peer == next) || (to_receive && peer == before);
    return moves || !concerned;
  });
}

}  // namespace lockstep::comm
