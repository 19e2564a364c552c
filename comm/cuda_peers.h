#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/cuda_memory.h"
#include "lockstep/comm/shared_group.h"
#include "lockstep/kernels/stream.h"

namespace lockstep::comm {

// How the ranks of a group reach each other's device memory and order their streams: by addresses
// and events where they are threads of one process, whatever the memory; between processes by
// CUDA's handles, for SharedDeviceMemory alone, and by words of memory of the host (kernels/cuda/
// ipc.h). Used by the thread that runs collectives, but for what is said otherwise.
//
// Each rank has a board of such words. A rank's stream writes how far it has come on all boards,
// and waits for what others wrote on its own; so what a rank waits for is always its own, whoever
// dies, and everybody can see on a rank's board whether its stream still has to come past work on
// the others' memory.
class CudaPeers {
 public:
  CudaPeers(SharedGroup& group, Device device);
  // Every rank calls it once, at the same place in its sequence of collectives. Throws what those
  // throw; a rank that fails must leave the group before this object goes.
  void connect();

  // Why some rank cannot reach another's memory; the same on every rank, and empty where all can.
  const std::string& why_not() const { return why_not_; }
  // Whether ranks are of several processes.
  bool apart() const { return apart_; }

  std::shared_ptr<void> allocate(size_t bytes) { return memory_->allocate(bytes); }
  DevicePlace place_of(const void* data, size_t bytes);
  // Whether every rank can reach it.
  bool is_reachable(const DevicePlace& place) const { return !apart_ || place.number != 0; }
  // REQUIRES: between begin() and what ends it.
  std::byte* reach(int rank, const DevicePlace& place);

  // How streams wait for each other: all ranks tell, where their buffers may be read and written
  // or where they have finished with the others'; meet; and wait for what all others told last. A
  // stream so waits only for what was put on another before the ranks met.
  void tell(const Stream& stream);
  void wait(const Stream& stream);
  // The same between neighbours, as often as they like and with no meeting: a rank tells the next
  // alone, and waits for what the rank before told last. What that has put on its stream it tells
  // the host as well, which waits for it, at most as long as for a meeting. All ranks tell equally
  // often, by these or by tell().
  void tell_next(const Stream& stream);
  void wait_for_before(const Stream& stream);
  // Tells nobody but who leaves that this rank's stream has come past what began with begin().
  void pass(const Stream& stream);

  // From here until its stream has come to the `tells`-th tell of whatever kind this rank uses
  // others' memory: who leaves waits for that. Throws where one has left already.
  void begin(uint64_t tells = 1);

  // From any thread: lets this rank's streams go on that wait for other processes, of which one may
  // have died. What is computed from then on is undefined. A stream of a rank that lives may take
  // it back until it has ended, so that it is to be called again and again.
  void let_go() noexcept;

  // Nothing of this rank is on its way any more, or ever will be: ends what others wait for, and
  // lets their memory go.
  void end() noexcept;
  // Once this rank has left: waits until the streams of all that live have come past what they do
  // with its memory. False where one has not at the deadline.
  bool await_passed(Deadline deadline) noexcept;
  // Memory stays as it is until the process ends, for some stream, this rank's own if `own_too`,
  // may still use it.
  void keep(bool own_too) noexcept;

 private:
  // A word of a board, in a cache line of its own.
  struct alignas(64) Word {
    std::atomic<uint64_t> value;
  };
  // Of each rank, in whole pages that all map.
  struct Board {
    Word* words = nullptr;
    std::shared_ptr<void> on_device;  // the same, for streams

    // The tell() whose passing ends what its owner does with others' memory; written by its host.
    std::atomic<uint64_t>& begun() const { return words[0].value; }
    // The last tell() that a rank's stream has come to; that of its owner tells all others.
    std::atomic<uint64_t>& came(int rank) const { return words[1 + rank].value; }
    void* came_on_device(int rank) const { return static_cast<Word*>(on_device.get()) + 1 + rank; }
    // 1 while a rank has memory of its owner mapped; written by that rank's host.
    std::atomic<uint64_t>& mapped(int rank, int size) const { return words[1 + size + rank].value; }
  };
  // By which threads of a process do the same.
  struct Marks {
    // Of the last n + 1 tells, in turn: an event is recorded anew only when no host has yet to put
    // a wait for it on its stream. In a ring a rank gets n - 1 steps ahead of the next and no
    // further, for then it waits, the long way round, for that one itself; at the end of a ring it
    // may tell besides that the next collective may begin.
    std::vector<Event> of;
    std::atomic<uint64_t> begun{0};

    Event& at(uint64_t tell) { return of[tell % of.size()]; }
  };
  struct Peer {
    bool is_here = false;          // in this process
    std::shared_ptr<Marks> marks;  // of those who are
    Board board;                   // of the others, and of this rank
    bool is_mapped = false;        // some of its memory, here
  };
  class AllMarks;
  struct Card;
  size_t board_bytes() const;
  int size() const { return static_cast<int>(peers_.size()); }
  Peer& own() { return peers_[static_cast<size_t>(rank_)]; }
  Card own_card();
  void know(int rank, const Card& card);
  void know_all(const std::vector<Card>& cards);
  void agree();
  void mark(const Stream& stream);
  void show(const Stream& stream, int rank);
  void wait_for(const Stream& stream, int rank);
  void raise_if_dying(int rank, std::string_view op);
  bool has_passed(int rank);

  SharedGroup& group_;
  const int rank_;
  const Device device_;
  const std::shared_ptr<SharedDeviceMemory> memory_;
  std::shared_ptr<void> board_pages_;  // of this rank's own
  std::vector<Peer> peers_;
  std::shared_ptr<void> probe_;  // that the others map to see whether they can
  std::map<std::pair<int, uint64_t>, std::shared_ptr<void>> mapped_;  // by rank and number
  uint64_t told_ = 0;  // tells so far, of whatever kind
  bool apart_ = false;
  bool has_boards_ = false;  // of all ranks, which are apart: they are connected
  std::string why_not_;
};

}  // namespace lockstep::comm
