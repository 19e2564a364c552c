#pragma once

#include <cstddef>

#include "lockstep/comm/collective.h"

namespace lockstep::comm {

// A rank's two connections in a ring: a stream of bytes to the next rank, and one from the rank
// before. Neither call waits; both throw where the other rank is lost.
class RingLink {
 public:
  // How many of the bytes were taken; 0 where there is no room now.
  virtual size_t try_send(const void* data, size_t bytes) = 0;
  // How many bytes were read; 0 where there are none now.
  virtual size_t try_receive(void* data, size_t bytes) = 0;
  // Returns when one of the wanted directions may go on, or sooner. Throws what ends a collective.
  virtual void wait(bool to_send, bool to_receive) = 0;

 protected:
  ~RingLink() = default;
};

// Runs a collective around the ring, in chunks: a chunk is sent on as soon as it has come and was
// folded, while the next is received. 2 (n - 1) / n of the buffer's bytes leave each rank for
// all_reduce, (n - 1) / n for reduce_scatter and all_gather, at most all of them for broadcast;
// partial results of f16 and bf16 sums travel as f32, twice the bytes in all steps but the first of
// a reduce_scatter, or of the first half of an all_reduce. REQUIRES: the ranks agree about the
// collective.
void run_ring(const Collective& collective, int rank, int size, RingLink& link);

}  // namespace lockstep::comm
