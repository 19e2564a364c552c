#include "lockstep/nn/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <stdexcept>

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Sample i is the row {10 i, 10 i + 1} with target -i; sample 3 is broken.
class Rows : public Dataset {
 public:
  int64_t size() const override { return 5; }
  Example get(int64_t index) const override {
    check_index(index, "rows");
    if (index == 3) throw std::runtime_error("the disk is on fire");
    const auto first = static_cast<float>(10 * index);
    return {Tensor::from<float>({first, first + 1}, {2}),
            Tensor::from<int64_t>({-index}, {1}).reshape({})};
  }
};

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Dataset, StacksItsSamplesInTheOrderAskedFor) {
  const std::array<int64_t, 3> indices = {4, 0, 4};
  const Batch batch = Rows().batch(indices);
  EXPECT_EQ(batch.size(), 3);
  EXPECT_THAT(batch.input.shape(), ElementsAre(3, 2));
  EXPECT_THAT(batch.input.to_vector<float>(), ElementsAre(40, 41, 0, 1, 40, 41));
  EXPECT_THAT(batch.target.to_vector<int64_t>(), ElementsAre(-4, 0, -4));
}

TEST(Dataset, NamesTheSampleThatFailed) {
  const std::array<int64_t, 3> indices = {1, 3, 2};
  const std::string message = message_of([&] { Rows().batch(indices); });
  EXPECT_THAT(message, HasSubstr("sample 3"));
  EXPECT_THAT(message, HasSubstr("the disk is on fire"));
}

TEST(Dataset, NamesAnIndexOutOfRange) {
  const std::array<int64_t, 2> indices = {1, 5};
  EXPECT_THAT(message_of([&] { Rows().batch(indices); }), HasSubstr("[0, 5), got 5"));
  EXPECT_THROW(Rows().batch({}), Error);
}

TEST(TensorDataset, GivesTheSameOneByOneAndInBatches) {
  const Tensor input = Tensor::arange(7 * 3).reshape({7, 3});
  const Tensor target = Tensor::arange(7);
  const TensorDataset dataset(input, target);
  const std::array<int64_t, 4> indices = {6, 2, 2, 0};
  const Batch together = dataset.batch(indices);
  const Batch one_by_one = dataset.Dataset::batch(indices);
  EXPECT_EQ(together.input.to_vector<int64_t>(), one_by_one.input.to_vector<int64_t>());
  EXPECT_EQ(together.target.to_vector<int64_t>(), one_by_one.target.to_vector<int64_t>());
  EXPECT_THAT(together.input.to_vector<int64_t>(),
              ElementsAre(18, 19, 20, 6, 7, 8, 6, 7, 8, 0, 1, 2));
}

TEST(TensorDataset, NeedsNoTarget) {
  const TensorDataset dataset(Tensor::arange(3));
  EXPECT_FALSE(dataset.get(1).target.defined());
  const std::array<int64_t, 1> indices = {2};
  EXPECT_FALSE(dataset.batch(indices).target.defined());
  EXPECT_EQ(dataset.batch(indices).input.item_i64(), 2);
}

TEST(TensorDataset, RefusesWhatDoesNotFitTogether) {
  EXPECT_THAT(message_of([] { TensorDataset(Tensor::arange(3), Tensor::arange(4)); }),
              HasSubstr("3 inputs and 4 targets"));
  EXPECT_THROW(TensorDataset(Tensor::scalar(1)), Error);
  const TensorDataset dataset(Tensor::arange(3));
  EXPECT_THROW(dataset.get(3), Error);
  EXPECT_THROW(dataset.get(-1), Error);
  const std::array<int64_t, 1> indices = {3};
  EXPECT_THROW(dataset.batch(indices), Error);
}

}  // namespace
}  // namespace lockstep::nn
