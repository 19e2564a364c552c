#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/collective.h"
#include "lockstep/comm/cuda_peers.h"
#include "lockstep/comm/shared_group.h"
#include "lockstep/kernels/stream.h"

namespace lockstep::comm {

// The collectives that go straight between the memories of the ranks' devices; docs/collectives.md
// has their steps. An all_reduce is two-shot, one-shot or a ring, by its request's algorithm, and
// all else two-shot. Used by the thread that runs collectives.
class CudaDirect {
 public:
  // Of a device's own stream, on which all is put.
  CudaDirect(SharedGroup& group, CudaPeers& peers, Device device, Stream stream);

  // REQUIRES: the stream is the current one of its device; the collective has a direct way
  // (cuda_transport.h). Returns once all ranks have come and this one's part is on the stream.
  // Throws what Transport::run() does; then others may still use this rank's memory.
  void run(const Collective& collective);

 private:
  struct Places;
  struct Piece;

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }

  void two_shot(const Collective& asked);
  DevicePlace place_of(const void* data, int64_t bytes);
  std::vector<Places> meet_ready(const Collective& asked, const Places& mine);
  void meet_done(const Collective& asked);
  bool all_reachable(const Collective& asked, const std::vector<Places>& all) const;
  void find(const Collective& asked, const std::vector<Places>& all, Piece& piece);
  void work(const Collective& asked, const Piece& piece);
  void fold(const Collective& asked, const Piece& piece, int64_t begin, int64_t end);
  void fold_in_block(const Collective& asked, const Piece& piece, int block, int64_t begin,
                     int64_t end);
  void copy(const std::byte* from, std::byte* to, int64_t bytes);
  void in_pieces(const Collective& asked);

  std::byte* take_turn(int64_t bytes);
  std::vector<const std::byte*> meet_in_turn(const Collective& asked, std::byte* own,
                                             uint64_t tells);
  void one_shot(const Collective& asked);
  void ring(const Collective& asked);
  struct RingPiece;
  void ring_piece(const Collective& asked, const RingPiece& piece);
  void ring_step(const Collective& asked, const RingPiece& piece, int step, const std::byte* from,
                 std::byte* to);

  SharedGroup& group_;
  CudaPeers& peers_;
  const Device device_;
  const Stream stream_;
  std::shared_ptr<void> staging_;             // of in_pieces(): in, out
  std::vector<std::shared_ptr<void>> turns_;  // of take_turn(): the last is used
  int64_t turn_bytes_ = 0;                    // half of that
  uint64_t turns_taken_ = 0;
};

}  // namespace lockstep::comm
