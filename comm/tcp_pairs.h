#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "lockstep/comm/pair_streams.h"
#include "lockstep/comm/socket.h"

namespace lockstep::comm {

// What a rank does with single ranks over TCP, exchanges included: on the connections over which
// ranks also say at which collective they are, between two of those.
class TcpPairs final : private PairLink {
 public:
  struct Options {
    int rank;
    int size;
    std::chrono::milliseconds timeout;
    bool crowded;  // more ranks than cores: do not spin
  };

  // `connections` has one to every other rank, by rank; `cancelled` is readable once all must end.
  // Both outlive this.
  TcpPairs(const Options& options, const std::vector<Fd>& connections, const Fd& cancelled);

  // As Transport's.
  void run(std::span<Transfer* const> transfers);
  void nudge() noexcept;
  // Moves all parts of an exchange that the ranks have agreed about.
  void exchange(const Collective& collective);

  // Sends the rest of a frame that is half sent, so that something else can be said; false where
  // the peer does not take it in time.
  bool finish_frame(int peer, Deadline deadline) noexcept;

 private:
  size_t try_send(int peer, const void* data, size_t bytes) override;
  size_t try_receive(int peer, void* data, size_t bytes) override;
  void wait(std::span<const Want> wants) override;
  [[noreturn]] void raise_frame(int peer, const Frame& frame, const Request& asked) override;
  [[noreturn]] void raise_lost(int peer);
  // Where no message has come that could say why.
  [[noreturn]] void raise_ended(int peer);
  void begin(const Request& request);
  bool take_nudge();  // true where there was one

  const Options options_;
  const std::vector<Fd>& connections_;
  const Fd& cancelled_;
  const Fd nudged_;  // an eventfd
  PairStreams streams_;
  Request asked_;  // of the exchange or the first transfer
  bool is_idle_ = false;
  Deadline idle_since_;
  Deadline deadline_;
};

}  // namespace lockstep::comm
