#include "lockstep/nn/data/fashion_mnist.h"

#include <array>
#include <filesystem>

#include "lockstep/kernels/text.h"
#include "lockstep/nn/data/idx.h"

namespace lockstep::nn {
namespace {

constexpr const char* kOp = "fashion_mnist";
constexpr int64_t kSide = 28;
constexpr int64_t kPixels = kSide * kSide;
constexpr int kClasses = 10;
constexpr const char* kHint =
    "Fashion-MNIST's files come with Debian's package dataset-fashion-mnist (apt-get install "
    "dataset-fashion-mnist), or from github.com/zalandoresearch/fashion-mnist";

// The plain file where there is one, else the compressed one.
Tensor read(const std::string& directory, const std::string& name) {
  const std::string plain = str_cat(directory, "/", name);
  std::error_code ignored;
  return read_idx(std::filesystem::exists(plain, ignored) ? plain : plain + ".gz", kHint);
}

// Pixels have 256 values: each is normalised once.
const std::array<float, 256>& normalised() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values;
    for (size_t i = 0; i < values.size(); ++i) {
      const double pixel = static_cast<double>(i) / 255;
      values[i] = static_cast<float>((pixel - FashionMnist::kPixelMean) / FashionMnist::kPixelStd);
    }
    return values;
  }();
  return table;
}

}  // namespace

FashionMnist::FashionMnist(Split split, const std::string& directory) {
  const std::string part = split == Split::kTrain ? "train" : "t10k";
  images_ = read(directory, part + "-images-idx3-ubyte");
  labels_ = read(directory, part + "-labels-idx1-ubyte");
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorCode::kCorrupt, kOp,
                str_cat("the ", part, " files in '", directory, "' ", message, "; ", kHint));
  };
  if (images_.dtype() != DType::kU8 || images_.dim() != 3 || images_.size(1) != kSide ||
      images_.size(2) != kSide) {
    fail(str_cat("want bytes of shape (N, 28, 28) as images, got ", to_string(images_.shape())));
  }
  if (labels_.dtype() != DType::kU8 || labels_.dim() != 1 || labels_.size(0) != images_.size(0)) {
    fail(str_cat("want a byte for each of ", images_.size(0), " images as labels, got ",
                 to_string(labels_.shape())));
  }
  for (int64_t i = 0; i < size(); ++i) {
    const int label = labels_.data<uint8_t>()[i];
    if (label >= kClasses) fail(str_cat("have label ", label, " for image ", i));
  }
}

Example FashionMnist::get(int64_t index) const {
  const Batch one = batch({&index, 1});
  return {one.input.select(0, 0), one.target.select(0, 0)};
}

Batch FashionMnist::batch(std::span<const int64_t> indices) const {
  check(!indices.empty(), kOp, "want at least one index for a batch, got none");
  for (const int64_t index : indices) check_index(index, kOp);
  const auto count = static_cast<int64_t>(indices.size());
  Tensor input = Tensor::empty({count, 1, kSide, kSide});
  Tensor target = Tensor::empty({count}, {.dtype = DType::kI64});
  const uint8_t* images = images_.data<uint8_t>();
  const uint8_t* labels = labels_.data<uint8_t>();
  const std::array<float, 256>& value = normalised();
  float* out = input.data<float>();
  for (const int64_t index : indices) {
    const uint8_t* image = images + index * kPixels;
    for (int64_t i = 0; i < kPixels; ++i) *out++ = value[image[i]];
  }
  int64_t* label_out = target.data<int64_t>();
  for (const int64_t index : indices) *label_out++ = labels[index];
  return {input, target};
}

}  // namespace lockstep::nn
