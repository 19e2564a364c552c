#include "lockstep/nn/data/fashion_mnist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string big_endian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// Three images whose pixel i is (i + 40 n) mod 256, with labels 7, 0, 9.
std::string images(uint32_t count = 3, uint32_t side = 28) {
  std::string bytes =
      std::string("\0\0\x08\x03", 4) + big_endian(count) + big_endian(side) + big_endian(side);
  for (uint32_t n = 0; n < count; ++n) {
    for (uint32_t i = 0; i < side * side; ++i) bytes += static_cast<char>(i + 40 * n);
  }
  return bytes;
}

std::string labels(const std::string& values) {
  return std::string("\0\0\x08\x01", 4) + big_endian(static_cast<uint32_t>(values.size())) + values;
}

class FashionMnistTest : public ::testing::Test {
 protected:
  FashionMnistTest() {
    std::string name = std::filesystem::temp_directory_path() / "lockstep-fashion-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
    directory_ = name;
  }
  ~FashionMnistTest() override { std::filesystem::remove_all(directory_); }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
  }
  std::string failure() const {
    try {
      FashionMnist(FashionMnist::Split::kTrain, directory_);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("dataset-fashion-mnist"));
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path directory_;
};

TEST_F(FashionMnistTest, NormalisesPixelsAndKeepsLabels) {
  write("t10k-images-idx3-ubyte", images());
  write("t10k-labels-idx1-ubyte", labels(std::string("\7\0\11", 3)));
  const FashionMnist dataset(FashionMnist::Split::kTest, directory_);
  EXPECT_EQ(dataset.size(), 3);
  const std::array<int64_t, 2> indices = {2, 0};
  const Batch batch = dataset.batch(indices);
  EXPECT_THAT(batch.input.shape(), ElementsAre(2, 1, 28, 28));
  EXPECT_THAT(batch.target.to_vector<int64_t>(), ElementsAre(9, 7));
  const std::vector<float> pixels = batch.input.to_vector<float>();
  for (size_t i = 0; i < pixels.size(); ++i) {
    const size_t pixel = (i % 784 + (i < 784 ? 80 : 0)) % 256;
    EXPECT_FLOAT_EQ(pixels[i],
                    static_cast<float>((static_cast<double>(pixel) / 255 - 0.2860) / 0.3530))
        << i;
  }
  const Batch one_by_one = dataset.Dataset::batch(indices);
  EXPECT_EQ(one_by_one.input.to_vector<float>(), pixels);
  EXPECT_EQ(one_by_one.target.to_vector<int64_t>(), batch.target.to_vector<int64_t>());
  EXPECT_THROW(dataset.get(3), Error);
}

TEST_F(FashionMnistTest, SaysHowToGetFilesThatAreNotThere) {
  EXPECT_THAT(failure(), HasSubstr("train-images-idx3-ubyte.gz' does not exist"));
  write("train-images-idx3-ubyte", images());
  EXPECT_THAT(failure(), HasSubstr("train-labels-idx1-ubyte.gz' does not exist"));
}

TEST_F(FashionMnistTest, RefusesFilesThatDoNotBelongTogether) {
  write("train-images-idx3-ubyte", images());
  write("train-labels-idx1-ubyte", labels("\1\2"));
  EXPECT_THAT(failure(), HasSubstr("a byte for each of 3 images as labels, got (2)"));
  write("train-labels-idx1-ubyte", labels("\1\2\12"));
  EXPECT_THAT(failure(), HasSubstr("label 10 for image 2"));
  write("train-images-idx3-ubyte", images(3, 27));
  EXPECT_THAT(failure(), HasSubstr("got (3, 27, 27)"));
}

TEST(FashionMnist, HasItsSixtyThousandPictures) {
  ASSERT_TRUE(std::filesystem::exists(FashionMnist::kDefaultDirectory))
      << "this test reads Debian's package dataset-fashion-mnist: third_party/install.sh data";
  const FashionMnist dataset(FashionMnist::Split::kTrain);
  ASSERT_EQ(dataset.size(), 60000);
  std::array<int, 10> counts{};
  double sum = 0;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const Example example = dataset.get(i);
    ++counts[static_cast<size_t>(example.target.item_i64())];
    const float* pixels = example.input.data<float>();
    for (int64_t p = 0; p < 784; ++p) sum += static_cast<double>(pixels[p]);
  }
  for (const int count : counts) EXPECT_EQ(count, 6000);
  EXPECT_NEAR(sum / (60000.0 * 784), 0, 1e-3);  // the mean that it subtracts is its own
}

}  // namespace
}  // namespace lockstep::nn
