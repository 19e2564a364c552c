#include "lockstep/nn/checkpoint/merge.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

[[noreturn]] void corrupt(std::string_view what, std::string_view message) {
  throw Error(ErrorCode::kCorrupt, "load_checkpoint", str_cat(what, ": ", message));
}

// Sorts the pieces, and makes sure that they are each element once.
void check_pieces(MergedTensor& tensor, std::span<const Index> indexes, std::string_view what) {
  const auto range_of = [&](const MergedTensor::Piece& piece) {
    return indexes[piece.file].tensors[piece.entry].range;
  };
  std::sort(tensor.pieces.begin(), tensor.pieces.end(),
            [&](const auto& a, const auto& b) { return range_of(a).first < range_of(b).first; });
  uint64_t next = 0;
  for (const MergedTensor::Piece& piece : tensor.pieces) {
    const ElementRange range = range_of(piece);
    if (range.first != next) {
      corrupt(what,
              str_cat("tensor '", tensor.name, "': its elements from ", std::min(range.first, next),
                      " are ", range.first > next ? "in none of the files" : "there twice"));
    }
    next += range.count;
  }
  const auto elements = static_cast<uint64_t>(numel(tensor.shape));
  if (next != elements) {
    corrupt(what, str_cat("tensor '", tensor.name, "': its elements from ", next, " to ", elements,
                          " are in none of the files"));
  }
}

void check_view(const StoredView& view, const MergedTensor& of, std::string_view what) {
  const auto elements = numel(of.shape);
  // An expanded view of one element may say any number of elements; no writer makes such.
  bool inside = numel(view.shape) <= elements && view.start <= elements;
  int64_t last = view.start;
  for (size_t i = 0; i < view.shape.size() && inside && numel(view.shape) > 0; ++i) {
    const int64_t steps = view.shape[i] - 1;
    inside = view.strides[i] == 0 || steps <= (elements - last) / view.strides[i];
    if (inside) last += steps * view.strides[i];
  }
  inside = inside && (numel(view.shape) == 0 || last < elements);
  if (!inside) {
    corrupt(what, str_cat("view '", view.name, "' reaches out of '", of.name, "', which has ",
                          elements, " elements"));
  }
}

}  // namespace

MergedIndex merge_indexes(std::span<const Index> indexes, std::string_view what) {
  MergedIndex merged;
  std::unordered_map<std::string, size_t> places;
  std::unordered_set<std::string> others;
  const auto check_new = [&](const std::string& name) {
    if (places.contains(name) || !others.insert(name).second) {
      corrupt(what, str_cat("the name '", name, "' is there twice"));
    }
  };
  for (size_t file = 0; file < indexes.size(); ++file) {
    for (size_t entry = 0; entry < indexes[file].tensors.size(); ++entry) {
      const StoredTensor& stored = indexes[file].tensors[entry];
      const auto [found, is_new] = places.emplace(stored.name, merged.tensors.size());
      if (is_new) merged.tensors.push_back({stored.name, stored.dtype, stored.shape, {}});
      MergedTensor& tensor = merged.tensors[found->second];
      if (tensor.dtype != stored.dtype || tensor.shape != stored.shape) {
        corrupt(what, str_cat("tensor '", stored.name, "' is ", name(tensor.dtype), " ",
                              to_string(tensor.shape), " in one file and ", name(stored.dtype), " ",
                              to_string(stored.shape), " in another"));
      }
      tensor.pieces.push_back({file, entry});
    }
  }
  for (MergedTensor& tensor : merged.tensors) check_pieces(tensor, indexes, what);
  for (const Index& index : indexes) {
    for (const StoredView& view : index.views) {
      check_new(view.name);
      const auto of = places.find(view.of);
      if (of == places.end()) {
        corrupt(what, str_cat("view '", view.name, "' is of '", view.of, "', which is no tensor"));
      }
      check_view(view, merged.tensors[of->second], what);
      merged.views.push_back(view);
    }
    for (const NamedValue& value : index.values) {
      check_new(value.name);
      merged.values.push_back(value);
    }
  }
  return merged;
}

}  // namespace lockstep::nn
