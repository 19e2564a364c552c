#pragma once

#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/ops/norm.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// Merges the batch statistics of the ranks of a group by the pairwise formula of Chan, Golub and
// LeVeque ("Updating formulae and a pairwise algorithm for computing sample variances", 1979,
// equation 2.1), in f64 and in rank order, so that every rank has the same bits. Ranks may have
// batches of different sizes, of one sample, or of none.
std::shared_ptr<BatchNormGroup> make_batch_norm_group(std::shared_ptr<comm::Communicator> group);

// Batch norm over the batches of all ranks of a group, for inputs (N, C, …) of 2 to 5 dimensions.
// In training, forward and backward are collective: one collective each, an all_gather of count,
// mean and squared deviations of all channels, and an all_reduce of the two sums. Backward with
// create_graph has two more, on every rank or on none. On a CUDA device, the group's, both are of
// its memory, and forward has a second all_gather, of the counts alone, for the host, which so need
// not wait for the device. Weight and bias gradients stay this rank's own; DataParallel averages
// them. In eval mode, or in a group of one, it is plain batch norm.
class SyncBatchNorm : public BatchNorm {
 public:
  SyncBatchNorm(int64_t num_features, std::shared_ptr<comm::Communicator> group,
                BatchNormOptions options = {});
};

// Makes every BatchNorm (and BatchNorm1d, 2d, 3d) in `module`, at any depth, and `module` itself,
// synchronise over `group`. Those that have a group already, of fewer ranks say, keep it. They stay
// the same objects: weights, buffers, requires_grad, training mode and names are what they were.
// Returns `module`. Called on every rank.
std::shared_ptr<Module> convert_sync_batchnorm(std::shared_ptr<Module> module,
                                               std::shared_ptr<comm::Communicator> group);

// The way back: every BatchNorm in `module` takes its rank's batch alone. Returns `module`.
std::shared_ptr<Module> revert_sync_batchnorm(std::shared_ptr<Module> module);

}  // namespace lockstep::nn
