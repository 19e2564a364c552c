#pragma once

#include <vector>

#include "lockstep/nn/checkpoint/format.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// What is to be stored of a list of tensors: each element once, and the tensors that are views of
// what is stored.
struct SharedLayout {
  NamedTensors stored;  // in the order of the list; memory that no tensor covers as "/storage0", …
  std::vector<StoredView> views;
};

// Tensors that have elements in common become views: of the one that covers them all, or of the
// memory from the first to the last of their elements. A tensor that has its elements for itself is
// stored by itself, whatever storage it is a view of. REQUIRES: the tensors are defined.
SharedLayout lay_out_shared(const NamedTensors& tensors);

}  // namespace lockstep::nn
