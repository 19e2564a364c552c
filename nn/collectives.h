#pragma once

#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/tensor.h"

namespace lockstep::nn {

// Collective. The sum or the average of x over the ranks of the group, as a new tensor. Recorded:
// its gradient is the sum or the average of the ranks' gradients, so that backward is collective
// too, and every rank must run it.
Tensor all_reduce(const Tensor& x, std::shared_ptr<comm::Communicator> group,
                  comm::ReduceOp op = comm::ReduceOp::kSum);

// Collective. `loss`, the mean over this rank's n samples, times n * world_size / N, N being the
// samples of all ranks: averaged over the ranks, which is what DataParallel does with gradients, it
// is the mean over all samples, for local batches of any sizes. The value is 0 on a rank that has
// no sample, even if a mean over none is NaN. Throws Error(kInvalidArgument) for n < 0.
Tensor mean_over_samples(const Tensor& loss, int64_t samples, comm::Communicator& group);

// x * weight, and exactly 0 where the weight is 0, whatever x is.
Tensor weighted(const Tensor& x, double weight);

// Collective; starts it. The elements of `data`, which is contiguous and must stay until the work
// is done, become their average over the group. Not recorded, and not counted as a change in place:
// call mark_changed() after.
comm::Work average_in_place(const Tensor& data, comm::Communicator& group);

// Records `average`, which holds the average of x over the group already, as all_reduce would.
Tensor average_recorded(const Tensor& x, Tensor average, std::shared_ptr<comm::Communicator> group);

}  // namespace lockstep::nn
