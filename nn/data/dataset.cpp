#include "lockstep/nn/data/dataset.h"

#include <exception>
#include <utility>
#include <vector>

#include "lockstep/core/ops/index.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

// Rethrows the exception being handled with the sample's number in front, so that one bad sample
// among millions can be found.
[[noreturn]] void rethrow_with_index(int64_t index) {
  const auto message = [index](const char* what) {
    return str_cat("sample ", index, " could not be read: ", what);
  };
  try {
    throw;
  } catch (const Error& error) {
    std::throw_with_nested(Error(error.code(), "dataset", message(error.what())));
  } catch (const std::bad_alloc& error) {
    std::throw_with_nested(Error(ErrorCode::kOutOfMemory, "dataset", message(error.what())));
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(ErrorCode::kIo, "dataset", message(error.what())));
  }
}

}  // namespace

Batch Dataset::batch(std::span<const int64_t> indices) const {
  check(!indices.empty(), "dataset", "want at least one index for a batch, got none");
  std::vector<Tensor> inputs;
  std::vector<Tensor> targets;
  for (const int64_t index : indices) {
    try {
      Example example = get(index);
      inputs.push_back(std::move(example.input));
      if (example.target.defined()) targets.push_back(std::move(example.target));
    } catch (...) {
      rethrow_with_index(index);
    }
  }
  check(targets.empty() || targets.size() == inputs.size(), "dataset", [&] {
    return str_cat("want a target for each sample of a batch or for none, got ", targets.size(),
                   " for ", inputs.size(), " samples");
  });
  return {stack(inputs, 0), targets.empty() ? Tensor() : stack(targets, 0)};
}

void Dataset::check_index(int64_t index, std::string_view op) const {
  check(index >= 0 && index < size(), op,
        [&] { return str_cat("want an index in [0, ", size(), "), got ", index); });
}

TensorDataset::TensorDataset(Tensor input, Tensor target)
    : input_(std::move(input)), target_(std::move(target)) {
  check(input_.dim() > 0 && (!target_.defined() || target_.dim() > 0), "tensor_dataset",
        "want tensors with the samples along dimension 0, got one of no dimensions");
  check(!target_.defined() || target_.size(0) == input_.size(0), "tensor_dataset", [&] {
    return str_cat("want a target for each input, got ", input_.size(0), " inputs and ",
                   target_.size(0), " targets");
  });
}

Example TensorDataset::get(int64_t index) const {
  check_index(index, "tensor_dataset");
  return {input_.select(0, index), target_.defined() ? target_.select(0, index) : Tensor()};
}

Batch TensorDataset::batch(std::span<const int64_t> indices) const {
  check(!indices.empty(), "tensor_dataset", "want at least one index for a batch, got none");
  for (const int64_t index : indices) check_index(index, "tensor_dataset");
  const Tensor places = Tensor::from(indices, {static_cast<int64_t>(indices.size())});
  const auto pick = [&](const Tensor& x) { return index_select(x, 0, places.to(x.device())); };
  return {pick(input_), target_.defined() ? pick(target_) : Tensor()};
}

}  // namespace lockstep::nn
