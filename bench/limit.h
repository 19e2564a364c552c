#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/comm/communicator.h"

namespace bench {

// What this machine could do at best for one size of all_reduce: every byte that must move, and
// nothing else; no waiting for other ranks, no protocol, no library in between.
class Limit {
 public:
  virtual ~Limit() = default;
  // Does this rank's share once; all ranks do theirs at the same time.
  virtual void run() = 0;
};

// Where ranks share memory: reads size bytes and writes size bytes, in memory of `device` of this
// rank alone. It adds S / n bytes of n arrays, and puts the sums into all n.
std::unique_ptr<Limit> memory_limit(int64_t count, lockstep::DType dtype,
                                    lockstep::comm::ReduceOp op, int ranks,
                                    lockstep::Device device);

// Over TCP: sends 2 (n - 1) / n of S bytes to the next rank through a plain socket, and receives as
// many from the rank before. Every rank makes one with the same arguments.
std::unique_ptr<Limit> socket_limit(lockstep::comm::Communicator& comm, int64_t bytes);

}  // namespace bench
