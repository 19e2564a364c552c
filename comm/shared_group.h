#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "lockstep/comm/pair_streams.h"
#include "lockstep/comm/ring.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

// What one rank shows to the others of its group, in memory that all of them map. Only its owner
// writes it, but for the bell, which the others ring. Zero bytes are a valid beginning.

// Lists with an entry per rank need no memory of their own for so many.
inline constexpr size_t kFewRanks = 8;

// Where a buffer is, as its owner tells the others: an address for threads, an allocation's number
// and an offset between processes. With kForeign, an address in its owner's process, which others
// can only read with the kernel's help, if at all.
using Place = uint64_t;
inline constexpr Place kForeign = Place{1} << 63;

// Where a rank's buffers of a collective are.
struct Places {
  Place send = 0;
  Place recv = 0;
};

// A rank's arrival at a collective, in one cache line: what it asks for, where its buffers are, and
// a payload of a few bytes.
struct alignas(64) Arrival {
  static constexpr size_t kInlineBytes = 24;

  std::atomic<uint64_t> round;  // written last
  uint64_t code;                // Request::code()
  int64_t count;
  Place send;
  Place recv;
  std::array<std::byte, kInlineBytes> inline_payload;
};
static_assert(sizeof(Arrival) == 64);

struct Member {
  // Payloads up to this size are handed over with the arrival.
  static constexpr size_t kPayloadBytes = size_t{64} << 10;

  struct alignas(64) Counter {
    std::atomic<uint64_t> value;
  };
  struct Slot {
    Arrival arrival;
    alignas(64) std::array<std::byte, kPayloadBytes> payload;
  };

  // A rank that sleeps waits on the bell; whoever changes something that it may wait for rings.
  alignas(64) std::atomic<uint32_t> sleeping;
  std::atomic<uint32_t> bell;
  // Changes a few times a second while this rank waits for others: it is not the one to blame.
  std::atomic<uint32_t> beat;
  // 1 while this rank reads or writes other ranks' buffers.
  alignas(64) std::atomic<uint32_t> touching;
  // 1 where this rank can read every other rank's memory (peer_read.h); set before its first round.
  std::atomic<uint32_t> reads;
  // 1 once this rank takes no further part; the reason is written first.
  alignas(64) std::atomic<uint32_t> left;
  uint32_t left_code;
  std::array<char, 64> left_op;
  std::array<char, 1024> left_message;

  Counter done;    // the last round whose buffers this rank has finished with
  Counter staged;  // chunks handed over in the staging area, ever
  Counter folded;  // chunks whose result is in the staging area, ever
  Counter copied;  // chunks taken from the others' staging areas, ever
  Counter sent;    // bytes put into the pipe to the next rank, ever
  Counter taken;   // bytes taken out of the pipe of the rank before, ever
  Counter queued;  // what this rank last told others to have put on its device's stream

  // Rounds take turns. A slot is free again when its owner has seen all arrive at the round after,
  // for then all have left the round before.
  std::array<Slot, 2> slots;
};

// A group whose ranks see each other's Member and a staging area of each: threads of a process, or
// processes that share memory. Small messages go in one shot; large ones straight between buffers
// that all ranks can reach (two-shot), or through the staging areas. docs/collectives.md has the
// steps.
class alignas(64) SharedGroup : public Transport, private RingLink, private PairLink {
 public:
  void run(const Collective& collective) final;
  Costs measure_costs(int rounds) final;
  std::string way_text(size_t bytes) const final;
  void run(std::span<Transfer* const> transfers) final;
  void nudge() noexcept final;
  void leave(const Failure& why) noexcept final;
  void cancel() noexcept final;

  // What a transport over other memory needs of these ranks.

  // How every collective begins, and no more: waits until all ranks ask for the same, and puts what
  // each has to tell into `all`, by rank: `bytes` of every rank, at most Member::kPayloadBytes.
  // Throws as run() does.
  void meet(const Collective& collective, const void* mine, size_t bytes, void* all) final;
  // From here to stop_touching() no rank that leaves lets its buffers go, for a while. Throws where
  // one has left already.
  void start_touching();
  void stop_touching();
  // Waits until no living rank is between the two; false where one still is at the deadline.
  bool await_untouched(Deadline deadline) noexcept;
  // Between two ranks and without the others: tells what this rank has put on its device's stream,
  // by a number that grows; waits until `peer` has told as much. Throws as run() does.
  void post_queued(uint64_t value);
  void await_queued(int peer, uint64_t value);
  // From any thread: a rank that died without leaving; -1 where none has.
  int find_dead() final;
  bool has_left(int peer) const { return peers_[peer].member->left.load() != 0; }

  // Where this rank's memory is to the others; 0 where they cannot map all of it.
  virtual Place place_of(const void* data, size_t bytes) = 0;
  // That memory of a peer in this process. Throws where it cannot be mapped.
  virtual std::byte* reach(int peer, Place place) = 0;
  // Whether a peer has died without leaving. Called a few times a second while waiting for it, from
  // any thread.
  virtual bool is_dead(int peer) = 0;

 protected:
  // One rank as this one sees it.
  struct Peer {
    Member* member = nullptr;
    std::byte* staging = nullptr;  // staging_bytes(size), zero at first
  };

  // `peers` has one entry per rank, this one included; filled in before run().
  SharedGroup(int rank, int size, std::chrono::milliseconds timeout);

  // The same on every rank of a group.
  static size_t staging_bytes(int size);

  // Copies from a peer's memory, by its address there; false where the peer is gone. Called only
  // where every rank's Member::reads is 1. Throws where that memory cannot be read.
  virtual bool read_peer(int peer, uint64_t address, void* to, size_t bytes) = 0;

  std::vector<Peer> peers_;
  bool crowded_ = false;  // more ranks than cores: do not spin

 private:
  struct Staging;
  struct Pipe;
  // What this rank has told of a pipe, in bytes. What it shows to the others it does not read
  // itself: they do, and the line would have to come back from them, which takes 30 ns between
  // cores that share a cache and 130 between others.
  struct Moved {
    uint64_t sent = 0;
    uint64_t taken = 0;
  };

  // The part of a staging area through which chunks go; pipes to single ranks follow.
  static size_t chunk_bytes(int size);
  static size_t pipe_bytes(int size);

  Member& self() { return *peers_[rank()].member; }
  // Waits until ready(peer) holds for every other rank. `ready` may throw.
  template <class Ready>
  void await(const Ready& ready);
  template <class Ready>
  void sleep_or_raise(const Ready& ready, Deadline deadline);
  [[noreturn]] void raise_left(int peer);
  // Of those that did not come, or are behind it that others did not come: who does not even wait.
  [[noreturn]] void raise_late(const std::vector<int>& late);
  void post(Member::Counter& counter, uint64_t value);
  // Stores what the others spin for; whoever of them sleeps is woken by the await() that follows.
  void store_before_await(std::atomic<uint64_t>& word, uint64_t value);
  void ring_bells();
  void ring_bell(Member& member);
  void ring_if_asleep(int peer);

  // Tells the others what this rank asks for, with `payload` or with the places of its buffers, and
  // waits until all have asked for the same; kMismatch where they have not.
  void arrive(const Collective& collective, const void* payload, size_t payload_bytes,
              const Places& places = {});
  Arrival& arrival(int peer) { return peers_[peer].member->slots[round_ % 2].arrival; }
  // Of this rank's buffers, and what a rank has told.
  Places places_of(const Collective& collective);
  Places told_places(int peer);
  const std::byte* payload(int peer, size_t bytes);
  [[noreturn]] void raise_mismatch(const Collective& collective);

  void one_shot(const Collective& collective);
  void one_shot_piece(const Collective& collective, int64_t first, int64_t last);
  // The cost model's choices for an all-reduce of `bytes` bytes.
  bool prefers_one_shot(size_t bytes) const;
  bool prefers_reading(size_t bytes) const;
  bool prefers_eager(size_t bytes) const;
  bool all_read() const;
  // Whether every buffer of a collective that others need is one that they can map.
  bool all_mapped(const Collective& collective);
  static double staged_meetings(size_t bytes);
  int64_t read_chunk() const;
  double read_calls(size_t bytes) const;
  void eager(const Collective& collective);
  void two_shot(const Collective& collective);
  void barrier();
  bool somebody_left() const;
  void direct(const Collective& collective);
  void read(const Collective& collective);
  bool read_part(int peer, Place place, int64_t offset, std::byte* to, int64_t bytes);
  bool read_fold(const Collective& collective, int64_t first, int64_t last);
  void stage(const Collective& collective, const Staging& staging, int64_t step);
  void fold(const Collective& collective, const Staging& staging, int64_t step);
  void copy(const Collective& collective, const Staging& staging, int64_t step);
  void staged(const Collective& collective);

  void exchange(const Collective& collective);
  void read_parts(const Collective& collective, std::span<const int64_t* const> tables);
  Pipe& pipe(int owner, int other);

  // PairLink
  size_t try_send(int peer, const void* data, size_t bytes) final;
  size_t try_receive(int peer, void* data, size_t bytes) final;
  void wait(std::span<const Want> wants) final;
  [[noreturn]] void raise_frame(int peer, const Frame& frame, const Request& asked) final;

  // RingLink
  size_t try_send(const void* data, size_t bytes) final;
  size_t try_receive(void* data, size_t bytes) final;
  void wait(bool to_send, bool to_receive) final;

  std::atomic<bool> cancelled_{false};
  bool bells_due_ = false;  // of store_before_await()
  std::atomic<bool> nudged_{false};
  std::string_view op_;  // of the collective that is run
  Request asked_;        // of it, or of the first transfer
  PairStreams streams_;
  Moved in_ring_;
  std::vector<Moved> moved_;  // through the pipes to and from each rank
  // Room for one per rank, in this object: ranks that are threads share no cache line.
  absl::InlinedVector<const std::byte*, kFewRanks> payloads_;
  absl::InlinedVector<const void*, kFewRanks> sources_;
  std::vector<std::byte> read_;  // what read() read of others, before it is folded
  Places places_;                // what this rank told last (see Moved)
  uint64_t round_ = 0;           // arrivals so far
  uint64_t chunks_ = 0;          // steps through the staging areas so far
};

}  // namespace lockstep::comm
