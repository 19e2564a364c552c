#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep::nn {

// One sample: what a model is given, and what it should say. A dataset without targets leaves the
// second one undefined.
struct Example {
  Tensor input;
  Tensor target;
};

// Samples together, along dimension 0 of both tensors.
struct Batch {
  Tensor input;
  Tensor target;

  int64_t size() const { return input.size(0); }
  // Both tensors on `device`; as Tensor::to().
  Batch to(Device device) const {
    return {input.to(device), target.defined() ? target.to(device) : Tensor()};
  }
};

// Samples that are found by their number. Both calls may come from several threads at a time (a
// DataLoader's workers), so they must not change what they share.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;

  // Throws Error(kInvalidArgument) that names `index` outside of [0, size()).
  virtual Example get(int64_t index) const = 0;

  // The samples at `indices`, in that order; REQUIRES at least one. As written here it stacks what
  // get() returns, and names the index for which that failed; a dataset overrides it where many
  // samples can be read faster than one by one.
  virtual Batch batch(std::span<const int64_t> indices) const;

 protected:
  // Throws what get() promises.
  void check_index(int64_t index, std::string_view op) const;
};

// Slices along dimension 0 of an input and a target of as many. It shares the tensors' memory.
class TensorDataset : public Dataset {
 public:
  // Throws Error(kInvalidArgument) where the two sizes differ or an input has no dimension.
  // `target` may be undefined.
  explicit TensorDataset(Tensor input, Tensor target = Tensor());

  int64_t size() const override { return input_.size(0); }
  Example get(int64_t index) const override;
  Batch batch(std::span<const int64_t> indices) const override;

 private:
  Tensor input_;
  Tensor target_;
};

}  // namespace lockstep::nn
