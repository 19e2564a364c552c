#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/nn/checkpoint/format.h"

namespace lockstep::nn {

// A tensor of a checkpoint, and where its elements are.
struct MergedTensor {
  // A tensor of an index: a range of the elements.
  struct Piece {
    size_t file = 0;
    size_t entry = 0;
  };
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<Piece> pieces;  // in the order of the elements, without gaps
};

// What the files of a checkpoint hold together.
struct MergedIndex {
  std::vector<MergedTensor> tensors;
  std::vector<StoredView> views;  // of those tensors
  std::vector<NamedValue> values;
};

// Puts the indexes of a checkpoint's files together. `what` names the checkpoint. Throws
// Error(kCorrupt) where a name is there twice, the ranges of a tensor overlap, leave a gap or
// disagree about it, or a view reaches out of the tensor that it names.
MergedIndex merge_indexes(std::span<const Index> indexes, std::string_view what);

}  // namespace lockstep::nn
