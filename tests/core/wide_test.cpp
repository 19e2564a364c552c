// Ops along one dimension take other loops where their lines stand side by side in memory: on
// tensors wider than those loops' strips they give what they give along memory.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 7;
constexpr int64_t kWide = 1301;

// Few different values, so that extremes occur several times, and a NaN in every 100th column.
Tensor sample() {
  Generator generator(3);
  Tensor x = randint(-4, 5, {kRows, kWide}, {DType::kI64}, &generator).to(DType::kF64);
  for (int64_t column = 50; column < kWide; column += 100) {
    x.index_put_({column % kRows, column}, std::nan(""));
  }
  return x;
}

void expect_same_along_both(const std::function<Tensor(const Tensor& x, int64_t dim)>& op) {
  const Tensor x = sample();
  const Tensor across = op(x, 0);
  const Tensor along = op(x.t().contiguous(), 1);
  const std::vector<double> want = along.to(DType::kF64).to_vector<double>();
  const Tensor turned = across.dim() == 2 ? across.t().contiguous() : across;
  const std::vector<double> got = turned.to(DType::kF64).to_vector<double>();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) << i;
  }
}

// `index` (rows, columns) for dim 0, its transpose for dim 1.
Tensor oriented(const Tensor& index, int64_t dim) {
  return dim == 0 ? index : index.t().contiguous();
}

TEST(WideOps, FindTheFirstExtremeOrNan) {
  expect_same_along_both([](const Tensor& x, int64_t dim) { return argmax(x, dim); });
  expect_same_along_both([](const Tensor& x, int64_t dim) { return argmin(x, dim); });
  // Along memory the first place is found run by run: longer lines than a run.
  const Tensor x = sample();
  const std::vector<int64_t> got = argmax(x, 1).to_vector<int64_t>();
  for (int64_t r = 0; r < kRows; ++r) {
    const std::vector<double> row = x.select(0, r).to_vector<double>();
    int64_t want = 0;
    for (int64_t i = 1; i < kWide && !std::isnan(row[static_cast<size_t>(want)]); ++i) {
      const double value = row[static_cast<size_t>(i)];
      if (value > row[static_cast<size_t>(want)] || std::isnan(value)) want = i;
    }
    EXPECT_EQ(got[static_cast<size_t>(r)], want) << r;
  }
}

TEST(WideOps, AddUpInOrder) {
  expect_same_along_both([](const Tensor& x, int64_t dim) { return cumsum(x, dim); });
}

TEST(WideOps, GatherAndScatter) {
  Generator generator(5);
  const Tensor places = randint(0, kRows, {9, kWide}, {DType::kI64}, &generator);
  const Tensor source = randn({9, kWide}, {DType::kF64}, &generator);
  expect_same_along_both(
      [&](const Tensor& x, int64_t dim) { return gather(x, dim, oriented(places, dim)); });
  expect_same_along_both([&](const Tensor& x, int64_t dim) {
    return scatter_add(x, dim, oriented(places, dim), oriented(source, dim));
  });
  expect_same_along_both([&](const Tensor& x, int64_t dim) {
    return scatter(x, dim, oriented(places, dim), oriented(source, dim));
  });
}

TEST(WideOps, SelectAndAddSlices) {
  const Tensor places = Tensor::from<int64_t>({6, 0, 3, 3, 1}, {5});
  expect_same_along_both(
      [&](const Tensor& x, int64_t dim) { return index_select(x, dim, places); });
  const Tensor places_of_all = Tensor::from<int64_t>({2, 0, 2, 1, 0, 2, 2}, {kRows});
  expect_same_along_both([&](const Tensor& x, int64_t dim) {
    const Shape shape = dim == 0 ? Shape{3, kWide} : Shape{kWide, 3};
    return index_add(shape, dim, places_of_all, x);
  });
}

TEST(WideOps, MirrorEveryDimension) {
  const Tensor x = Tensor::arange(3 * 5 * 2).reshape({3, 5, 2});
  const std::vector<int64_t> got = flip(x.permute({2, 0, 1}), {-1, 0}).to_vector<int64_t>();
  size_t i = 0;
  for (int64_t a = 1; a >= 0; --a) {
    for (int64_t b = 0; b < 3; ++b) {
      for (int64_t c = 4; c >= 0; --c) EXPECT_EQ(got[i++], b * 10 + c * 2 + a);
    }
  }
  EXPECT_EQ(flip(x, {1, 1}).to_vector<int64_t>(), x.to_vector<int64_t>());
  EXPECT_EQ(flip(Tensor::ones({0, 3}), {0}).shape(), Shape({0, 3}));
}

}  // namespace
}  // namespace lockstep
