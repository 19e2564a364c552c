#pragma once

#include <memory>

#include "lockstep/comm/collective.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

// A group whose buffers may be memory of a CUDA device besides the CPU's, of which `host` takes
// care. Every rank makes one at the same place in its sequence of collectives; throws what those
// throw, and, with `must_reach`, kInvalidArgument that says why a rank cannot reach another's
// memory. Where one rank fails all have an error that names it.
//
// Where all ranks are of one host and reach each other's devices ("cuda"), all_reduce,
// reduce_scatter, all_gather, broadcast and reduce of device memory go straight between the
// devices. What is left, and all of it elsewhere, is staged through pinned memory of the host.
//
// Everything is put on a stream of high priority, behind what was on the caller's stream when it
// called. Ranks meet on the host first and tell each other where their memory is; their streams
// wait for each other (CudaPeers), each for what a meeting or a neighbour has said to be on another
// before, so that no stream waits for work that is not on another yet. A barrier() that returns
// says that all collectives before it have finished on all ranks' devices.
std::unique_ptr<Transport> make_cuda_transport(std::unique_ptr<Transport> host, Device device,
                                               bool direct, bool must_reach);

// Whether it has a way straight between devices for such a collective of `size` ranks.
bool has_direct_way(const Collective& collective, int size);

}  // namespace lockstep::comm
