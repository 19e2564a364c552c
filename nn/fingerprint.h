#pragma once

#include <cstdint>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/tensor.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// XXH3 (64 bits) of the tensor's values in row-major order; dtype, shape and device are left out.
// Equal values with different bits (0 and -0, two NaNs) differ.
uint64_t fingerprint(const Tensor& tensor);

// One number for all of them, in order.
uint64_t fingerprint(const NamedTensors& tensors);

// Collective. Compares names, shapes, dtypes and requires_grad over the group. Throws
// Error(kMismatch) on every rank, with the same text: it names the first entry that differs, and
// what each side has.
void check_same_layout(const NamedTensors& tensors, comm::Communicator& group, std::string_view op);

// Collective. Compares the values bit by bit through their fingerprints. REQUIRES the same layout
// on every rank. Throws Error(kMismatch) on every rank, with the same text: it names the first
// tensor that differs, the ranks that differ from rank 0, and how many more tensors do.
void check_same_values(const NamedTensors& tensors, comm::Communicator& group, std::string_view op);

// Collective. Every rank gets rank `root`'s values; not recorded. REQUIRES the same layout.
void broadcast_values(const NamedTensors& tensors, comm::Communicator& group, int root = 0);

}  // namespace lockstep::nn
