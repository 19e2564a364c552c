#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "lockstep/comm/costs.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

// The same group ("nccl"), with NCCL for what that has of device memory, on a stream of high
// priority; `others` takes care of all else: memory of the host, send and recv, bools, bitwise
// ops, averages of integers, and min and max of floats. NCCL folds in an order of its own.
//
// NCCL's kernels wait for each other on the devices. Ranks meet on the host before each, so that
// they begin none about which they disagree; where a rank dies, NCCL notices an error by itself or
// the timeout passes, they are aborted, and the next call throws (CudaWatch).
//
// Where `others` has a way of its own between the devices, and rank 0 has `costs`, the cheaper of
// the two is taken for each size of what both have. Without them NCCL is, whatever it costs: its
// bits are not the other way's, and would else differ from one start to the next.
//
// Returns `others` where ranks share a device, where one has no NCCL, or where NCCL cannot connect
// them; with `must`, throws kInvalidArgument (kDevice for the last) that says which. `machine` is
// the same for two ranks of one machine and for no others. Every rank calls it at the same place in
// its sequence of collectives. Throws what those throw.
std::unique_ptr<Transport> with_nccl(std::unique_ptr<Transport> others, std::string_view machine,
                                     bool must, const std::optional<DeviceCosts>& costs);

}  // namespace lockstep::comm
