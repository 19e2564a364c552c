#pragma once

#include <string>

#include "lockstep/nn/data/dataset.h"

namespace lockstep::nn {

// Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 60000 training and 10000 test pictures of
// clothes, 28 x 28 grey, in ten classes. Kept in memory as bytes, 45 MiB for the training set.
class FashionMnist : public Dataset {
 public:
  enum class Split { kTrain, kTest };

  // Where Debian's package dataset-fashion-mnist puts the files.
  static constexpr const char* kDefaultDirectory = "/usr/share/datasets/fashion-mnist";

  // Of the training set's pixels in [0, 1].
  static constexpr double kPixelMean = 0.2860;
  static constexpr double kPixelStd = 0.3530;

  // Reads train-images-idx3-ubyte and train-labels-idx1-ubyte, or t10k-…, plain or with .gz, from
  // `directory`. Throws Error (kIo, kCorrupt) that names the file and says how to get it.
  explicit FashionMnist(Split split, const std::string& directory = kDefaultDirectory);

  int64_t size() const override { return images_.size(0); }
  // input (1, 28, 28), f32, (pixel - mean) / std; target a scalar, i64, in [0, 10).
  Example get(int64_t index) const override;
  // input (N, 1, 28, 28), target (N).
  Batch batch(std::span<const int64_t> indices) const override;

 private:
  Tensor images_;  // u8 (N, 28, 28)
  Tensor labels_;  // u8 (N)
};

}  // namespace lockstep::nn
