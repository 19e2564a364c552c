#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/comm/collective.h"

namespace lockstep::comm {

// What begins everything that one rank tells another over a stream of bytes.
struct Frame {
  enum class Kind : uint32_t {
    kArrival = 1,  // at a collective (tcp)
    kLeft = 2,     // and takes no part in anything more (tcp)
    kPost = 3,     // of a send or a recv
    kData = 4,     // of a transfer; `count` bytes follow
  };

  Kind kind = Kind::kData;
  uint32_t text_bytes = 0;  // of kLeft: "op\nmessage" follows
  uint64_t sequence = 0;    // of kPost: how many sends (or recvs) between these ranks came before
  uint64_t code = 0;        // of kPost: Request::code()
  int64_t count = 0;        // of kPost: elements; of kData: bytes
};
static_assert(sizeof(Frame) == 32);

// Bytes on their way from one rank to another: a send or a recv, or one rank's part of an exchange.
struct Transfer {
  Request request;  // kSend or kRecv and the other rank, or what all ranks have agreed about
  int peer = 0;
  bool sends = false;
  std::byte* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<OnDevice> on_device = nullptr;  // null: `data` is the CPU's

  int64_t moved = 0;
  bool posted = false;
  bool agreed = false;  // about the bytes; from the start for the parts of an exchange

  bool done() const { return agreed && moved == bytes; }
};

// A rank's streams of bytes to and from every other rank.
class PairLink {
 public:
  struct Want {
    int peer;
    bool to_send;
    bool to_receive;
  };

  // How many of the bytes were taken; 0 where there is no room now. Throw where the peer is lost.
  virtual size_t try_send(int peer, const void* data, size_t bytes) = 0;
  virtual size_t try_receive(int peer, void* data, size_t bytes) = 0;
  // Returns when one of them may go on, or sooner. Throws what ends a collective.
  virtual void wait(std::span<const Want> wants) = 0;
  // Where a frame came that is of no transfer: throws what that means.
  [[noreturn]] virtual void raise_frame(int peer, const Frame& frame, const Request& asked) = 0;

 protected:
  ~PairLink() = default;
};

// Transfers between this rank and others, side by side, in frames.
//
// A send and the recv that it meets are posted to the other side before any data go, so that both
// ranks see whether they ask for the same, and so that data never stand in the way of what comes
// behind them. The n-th send to a rank meets its n-th recv from this one.
class PairStreams {
 public:
  PairStreams(int rank, int size) : rank_(rank), streams_(size) {}

  // Moves what can be moved; true where anything did. Of the transfers with one peer in one
  // direction the first that is not done goes on. Throws kMismatch, and what the link throws.
  bool progress(std::span<Transfer* const> transfers, PairLink& link);
  // Moves all parts of an exchange that the ranks have agreed about.
  void exchange(const Collective& collective, PairLink& link);
  // Waits until progress() may have something to do.
  void wait(std::span<Transfer* const> transfers, PairLink& link);
  // Goes on with a frame to this peer that is half sent, whose data must still be there; true once
  // there is none.
  bool finish_frame(int peer, PairLink& link);
  // A frame from this peer is half received.
  bool is_receiving_frame(int peer) const {
    return streams_[peer].in_received != 0 || streams_[peer].in_left != 0;
  }

 private:
  struct Stream {
    std::deque<Frame> posts;  // to be sent
    Frame out;                // while out_open
    bool out_open = false;
    size_t out_sent = 0;  // of the frame's header
    const std::byte* out_data = nullptr;
    int64_t out_left = 0;
    Frame in;
    size_t in_received = 0;  // of a frame's header
    int64_t in_left = 0;
    uint64_t sends = 0;  // posts so far
    uint64_t recvs = 0;
    // What the peer posted and nothing here has met yet.
    std::optional<Frame> their_send;
    std::optional<Frame> their_recv;

    Transfer* send = nullptr;  // what goes on now
    Transfer* recv = nullptr;
  };

  void choose(std::span<Transfer* const> transfers);
  void post(Stream& stream, Transfer& transfer);
  // Whether what the peer posted meets what goes on now, or the transfer. Throw kMismatch.
  bool meet(int peer);
  static bool is_posting(const Stream& stream, Kind kind);
  bool meets(int peer, Transfer& transfer, std::optional<Frame>& theirs);
  bool push(int peer, PairLink& link);
  // Sends what goes now of the open frame; false where nothing does.
  bool push_frame(int peer, PairLink& link);
  bool pull(int peer, PairLink& link);
  static bool wants_to_send(const Stream& stream);
  static bool wants_to_receive(const Stream& stream);

  const int rank_;
  std::vector<Stream> streams_;  // by rank
};

}  // namespace lockstep::comm
