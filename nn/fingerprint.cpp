#include "lockstep/nn/fingerprint.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lockstep/core/autograd.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/host_copy.h"

namespace lockstep::nn {
namespace {

std::string layout_line(const std::string& path, const Tensor& tensor) {
  const std::string_view dtype = name(tensor.dtype());
  return str_cat("'", path, "' ", to_string(tensor.shape()), " ", dtype,
                 tensor.requires_grad() ? " trainable" : "");
}

// The texts of all ranks, which may differ in length.
std::vector<std::string> gather_texts(const std::string& text, comm::Communicator& group) {
  const auto ranks = static_cast<size_t>(group.size());
  const auto length = static_cast<int64_t>(text.size());
  std::vector<int64_t> lengths(ranks);
  group.all_gather(&length, lengths.data(), 1, DType::kI64).wait();
  const auto longest = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::string padded = text;
  padded.resize(longest);
  std::string all(longest * ranks, '\0');
  group.all_gather(padded.data(), all.data(), static_cast<int64_t>(longest), DType::kU8).wait();
  std::vector<std::string> texts;
  for (size_t r = 0; r < ranks; ++r) {
    texts.push_back(all.substr(r * longest, static_cast<size_t>(lengths[r])));
  }
  return texts;
}

}  // namespace

uint64_t fingerprint(const Tensor& tensor) {
  const Tensor dense = on_host(tensor);
  return XXH3_64bits(dense.view().data, static_cast<size_t>(dense.nbytes()));
}

uint64_t fingerprint(const NamedTensors& tensors) {
  std::vector<uint64_t> parts;
  for (const auto& [path, tensor] : tensors) parts.push_back(fingerprint(tensor));
  return XXH3_64bits(parts.data(), parts.size() * sizeof(uint64_t));
}

void check_same_layout(const NamedTensors& tensors, comm::Communicator& group,
                       std::string_view op) {
  if (group.size() == 1) return;
  std::string text;
  for (const auto& [path, tensor] : tensors)
    absl::StrAppend(&text, layout_line(path, tensor), "\n");
  const std::vector<std::string> texts = gather_texts(text, group);
  const std::vector<std::string> first = absl::StrSplit(texts[0], '\n');
  for (size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] == texts[0]) continue;
    const std::vector<std::string> other = absl::StrSplit(texts[r], '\n');
    size_t i = 0;
    while (i < first.size() && i < other.size() && first[i] == other[i]) ++i;
    const auto entry = [i](const std::vector<std::string>& lines) {
      return i < lines.size() && !lines[i].empty() ? lines[i] : std::string("nothing");
    };
    throw Error(ErrorCode::kMismatch, op,
                str_cat("want the same model on every rank, but rank 0 has ", entry(first),
                        " as its tensor ", i, " and rank ", r, " has ", entry(other),
                        " (rank 0: ", first.size() - 1, " tensors, rank ", r, ": ",
                        other.size() - 1, "); build the model in the same way everywhere"));
  }
}

void check_same_values(const NamedTensors& tensors, comm::Communicator& group,
                       std::string_view op) {
  if (group.size() == 1) return;
  const auto ranks = static_cast<size_t>(group.size());
  std::vector<int64_t> mine;
  for (const auto& [path, tensor] : tensors) {
    mine.push_back(static_cast<int64_t>(fingerprint(tensor)));
  }
  std::vector<int64_t> all(mine.size() * ranks);
  group.all_gather(mine.data(), all.data(), static_cast<int64_t>(mine.size()), DType::kI64).wait();
  size_t differing = 0;
  std::string first;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<size_t> others;
    for (size_t r = 1; r < ranks; ++r) {
      if (all[r * mine.size() + i] != all[i]) others.push_back(r);
    }
    if (others.empty()) continue;
    if (++differing == 1) {
      first = str_cat("'", tensors[i].first, "' differs from rank 0's on rank",
                      others.size() == 1 ? " " : "s ", absl::StrJoin(others, ", "));
    }
  }
  if (differing == 0) return;
  throw Error(ErrorCode::kMismatch, op,
              str_cat("replicas have drifted apart: ", first, ", and ", differing - 1, " more of ",
                      tensors.size(),
                      " tensors differ; change parameters in the same way on every rank (a "
                      "checkpoint is loaded on all of them)"));
}

void broadcast_values(const NamedTensors& tensors, comm::Communicator& group, int root) {
  if (group.size() == 1) return;
  NoGrad no_grad;
  std::vector<Tensor> dense;
  std::vector<comm::Work> works;
  for (const auto& [path, tensor] : tensors) {
    dense.push_back(tensor.detach().contiguous());
    works.push_back(
        group.broadcast(dense.back().view().data, dense.back().numel(), tensor.dtype(), root));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    works[i].wait();
    Tensor target = tensors[i].second;
    if (dense[i].shares_storage(target)) {
      target.mark_changed("broadcast");
    } else {
      target.copy_(dense[i]);
    }
  }
}

}  // namespace lockstep::nn
