#include "lockstep/kernels/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/kernels/error.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Shape, CountsElementsWithoutOverflow) {
  EXPECT_EQ(numel({}), 1);
  EXPECT_EQ(numel({2, 3, 5}), 30);
  EXPECT_EQ(numel({int64_t{1} << 40, 0, int64_t{1} << 40}), 0);
  EXPECT_EQ(numel({int64_t{1} << 31, 2}), int64_t{1} << 32);
  EXPECT_THAT(
      [] {
        numel({int64_t{1} << 31, int64_t{1} << 31}, "empty");
      },
      ThrowsMessage<Error>(HasSubstr("[empty]")));
  EXPECT_THROW(numel({2, -1}), Error);
}

// Strides of an empty shape overflowed, which an empty IDX file with huge other sizes showed.
TEST(Shape, HasStridesForEmptyShapesOfAnySize) {
  const int64_t huge = int64_t{1} << 40;
  EXPECT_EQ(contiguous_strides({0, huge, huge}), (Strides{0, huge, 1}));
  EXPECT_EQ(channels_last_strides({0, huge, huge, huge}), (Strides{0, 1, 0, huge}));
  EXPECT_TRUE(is_contiguous({0, huge, huge}, contiguous_strides({0, huge, huge})));
}

TEST(Shape, KnowsMemoryOrders) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_EQ(channels_last_strides({2, 3, 4, 5}), (Strides{60, 1, 15, 3}));
  EXPECT_TRUE(is_contiguous({2, 1, 4}, {4, 99, 1}));
  EXPECT_FALSE(is_contiguous({2, 3}, {1, 2}));
  EXPECT_TRUE(is_contiguous({0, 3}, {7, 7}));
  EXPECT_TRUE(is_channels_last({2, 3, 4, 5}, {60, 1, 15, 3}));
  EXPECT_TRUE(is_channels_last({2, 1, 4, 5}, {20, 20, 5, 1}));  // one channel: both orders
}

TEST(Shape, BroadcastsLikeNumPy) {
  EXPECT_EQ(broadcast_shapes({2, 1, 5}, {3, 1}, "add"), (Shape{2, 3, 5}));
  EXPECT_EQ(broadcast_shapes({}, {3}, "add"), (Shape{3}));
  EXPECT_EQ(broadcast_shapes({0, 1}, {1, 4}, "add"), (Shape{0, 4}));
  EXPECT_THAT(
      [] {
        broadcast_shapes({2, 3}, {2}, "add");
      },
      ThrowsMessage<Error>(HasSubstr("[add] want shapes that broadcast, got (2, 3) and")));
}

TEST(Shape, CountsDimensionsFromTheEnd) {
  EXPECT_EQ(normalize_dim(-1, 3, "sum"), 2);
  EXPECT_EQ(normalize_dim(0, 0, "sum"), 0);
  EXPECT_THROW(normalize_dim(3, 3, "sum"), Error);
  EXPECT_THROW(normalize_dim(-4, 3, "sum"), Error);
}

}  // namespace
}  // namespace lockstep
