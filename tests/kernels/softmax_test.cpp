#include "lockstep/kernels/softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

using Row = std::vector<double>;
using Kernel = void (*)(const View& a, const View& b, const View& out, int64_t axis);
using Want = void (*)(const Row& a, const Row& b, Row& out);

double log_sum_exp(const Row& x) {
  const double most = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double v : x) sum += std::exp(v - most);
  return most + std::log(sum);
}

// Runs the kernel along every axis of several shapes and memory orders. Inputs are as the dtype
// holds them; `factor` is how many roundings, of numbers up to 4 in size, a result may be off.
void expect_rows(Kernel kernel, Want want, double factor) {
  for (DType dtype : kFloats) {
    for (const Shape& shape :
         {Shape{7, 10}, Shape{3, 65, 5}, Shape{2, 3, 4, 5}, Shape{2, 4100}, Shape{1}, Shape{}}) {
      const Array a_values = sample(dtype, shape, -2, 2, 1);
      const auto rank = static_cast<int64_t>(shape.size());
      const std::vector<Strides> orders = some_strides(shape);
      for (int64_t axis = 0; axis < std::max<int64_t>(1, rank); ++axis) {
        const auto d = static_cast<size_t>(axis);
        const int64_t size = rank == 0 ? 1 : shape[d];
        const int64_t inner = rank == 0 ? 1 : contiguous_strides(shape)[d];
        // As probabilities are: a row sums to about 1.
        const Array b_values = sample(dtype, shape, 0, 2 / static_cast<double>(size), 2);
        for (size_t k = 0; k < orders.size(); ++k) {
          SCOPED_TRACE(std::string(name(dtype)) + to_string(shape) + " by " + to_string(orders[k]) +
                       " axis " + std::to_string(axis));
          const Array a = with_strides(a_values, orders[k]);
          const Array b = with_strides(b_values, orders[k % 2]);
          const Array out = empty(dtype, shape, orders[(k + 1) % orders.size()]);
          kernel(a.view, b.view, out.view, axis);
          for (int64_t i = 0; i < out.numel(); ++i) {
            if (i / inner % size != 0) continue;
            Row row_a;
            Row row_b;
            for (int64_t j = 0; j < size; ++j) row_a.push_back(a.get(i + j * inner));
            for (int64_t j = 0; j < size; ++j) row_b.push_back(b.get(i + j * inner));
            Row row(row_a.size());
            want(row_a, row_b, row);
            for (int64_t j = 0; j < size; ++j) {
              const double eps = epsilon(dtype);
              const double lane = epsilon(dtype == DType::kF64 ? dtype : DType::kF32);
              ASSERT_TRUE(
                  close(out.get(i + j * inner), row[static_cast<size_t>(j)], eps, factor * lane))
                  << i << " " << j;
            }
          }
        }
      }
    }
  }
}

TEST(Softmax, EveryAxisMemoryOrderAndDtype) {
  expect_rows(
      [](const View& a, const View&, const View& out, int64_t axis) { Softmax::cpu(a, out, axis); },
      [](const Row& a, const Row&, Row& out) {
        const double lse = log_sum_exp(a);
        for (size_t i = 0; i < a.size(); ++i) out[i] = std::exp(a[i] - lse);
      },
      4);
}

TEST(SoftmaxBackward, EveryAxisMemoryOrderAndDtype) {
  expect_rows(
      SoftmaxBackward::cpu,
      [](const Row& g, const Row& y, Row& out) {
        double dot = 0;
        for (size_t i = 0; i < g.size(); ++i) dot += g[i] * y[i];
        for (size_t i = 0; i < g.size(); ++i) out[i] = y[i] * (g[i] - dot);
      },
      64);
}

TEST(LogSoftmax, EveryAxisMemoryOrderAndDtype) {
  expect_rows([](const View& a, const View&, const View& out,
                 int64_t axis) { LogSoftmax::cpu(a, out, axis); },
              [](const Row& a, const Row&, Row& out) {
                const double lse = log_sum_exp(a);
                for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] - lse;
              },
              8);
}

TEST(LogSoftmaxBackward, EveryAxisMemoryOrderAndDtype) {
  expect_rows(
      LogSoftmaxBackward::cpu,
      [](const Row& g, const Row& y, Row& out) {
        double sum = 0;
        for (double v : g) sum += v;
        for (size_t i = 0; i < g.size(); ++i) out[i] = g[i] - std::exp(y[i]) * sum;
      },
      64);
}

TEST(Softmax, LargeValuesDoNotOverflowAndNanSpreadsInItsRow) {
  const Array x = filled(empty(DType::kF32, {3, 5}), [](int64_t i) {
    return i == 7 ? kNan : 3e38 - 1e38 * static_cast<double>(i % 5 == 2);
  });
  const Array y = empty(DType::kF32, {3, 5});
  Softmax::cpu(x.view, y.view, 1);
  for (int64_t i : {0, 2}) {
    for (int64_t j = 0; j < 5; ++j) EXPECT_NEAR(y.get(i * 5 + j), j == 2 ? 0 : 0.25, 1e-7);
  }
  for (int64_t j = 5; j < 10; ++j) EXPECT_TRUE(std::isnan(y.get(j)));
  LogSoftmax::cpu(x.view, y.view, 1);
  EXPECT_NEAR(y.get(0), std::log(0.25), 1e-6);
}

// Blocks of rows, of which the short ones go through vectors side by side.
TEST(Softmax, ManyRowsAreEachAsIfAlone) {
  for (const auto kernel : {&Softmax::cpu, &LogSoftmax::cpu}) {
    for (int64_t size : {1, 3, 9, 63, 64, 65, 700, 2049}) {
      const Array x = sample(DType::kF32, {411, size}, -20, 20);
      const Array y = empty(DType::kF32, {411, size});
      kernel(x.view, y.view, 1);
      for (int64_t r = 0; r < 411; ++r) {
        const Array row =
            filled(empty(DType::kF32, {1, size}), [&](int64_t i) { return x.get(r * size + i); });
        const Array alone = empty(DType::kF32, {1, size});
        kernel(row.view, alone.view, 1);
        for (int64_t i = 0; i < size; ++i) {
          ASSERT_EQ(y.get(r * size + i), alone.get(i)) << size << " row " << r << " at " << i;
        }
      }
    }
  }
}

TEST(LogSumExp, EveryAxisMemoryOrderAndDtype) {
  for (DType dtype : kFloats) {
    for (const Shape& shape : {Shape{411, 9}, Shape{3, 65, 5}, Shape{2, 4100}, Shape{1}, Shape{}}) {
      const Array values = sample(dtype, shape, -2, 2, 1);
      for (int64_t axis = 0; axis < std::max<int64_t>(1, values.view.dim()); ++axis) {
        Shape kept = shape;
        if (!shape.empty()) kept[static_cast<size_t>(axis)] = 1;
        const int64_t inner =
            shape.empty() ? 1 : contiguous_strides(shape)[static_cast<size_t>(axis)];
        const int64_t size = values.numel() / lockstep::numel(kept);
        for (const Strides& order : some_strides(shape)) {
          const Array x = with_strides(values, order);
          const Array y = empty(dtype, kept);
          LogSumExp::cpu(x.view, y.view, axis);
          for (int64_t i = 0; i < y.numel(); ++i) {
            Row row;
            for (int64_t j = 0; j < size; ++j) {
              row.push_back(x.get(i / inner * inner * size + i % inner + j * inner));
            }
            const double lane = epsilon(dtype == DType::kF64 ? dtype : DType::kF32);
            ASSERT_TRUE(close(y.get(i), log_sum_exp(row), epsilon(dtype), 8 * lane))
                << name(dtype) << to_string(shape) << " axis " << axis << " at " << i;
          }
        }
      }
    }
  }
}

TEST(LogSumExp, InfinitiesAndNanComeThrough) {
  const double rows[][3] = {{-kInf, -kInf, -kInf}, {kInf, 3, kInf},     {-kInf, 2, -kInf},
                            {kInf, kNan, 1},       {kNan, -kInf, 1},    {-kInf, kNan, -kInf},
                            {1000, 1000, -kInf},   {-5000, kInf, -kInf}};
  const double want[] = {-kInf, kInf, 2, kNan, kNan, kNan, 1000 + std::log(2.0), kInf};
  for (DType dtype : kFloats) {
    for (const int64_t repeats : {1, 40}) {  // short rows and longer ones
      const Array x = filled(empty(dtype, {8, 3 * repeats}),
                             [&](int64_t i) { return rows[i / (3 * repeats)][i % 3]; });
      const Array y = empty(dtype, {8, 1});
      LogSumExp::cpu(x.view, y.view, 1);
      for (int64_t r = 0; r < 8; ++r) {
        const bool counts = r == 2 || r == 6;
        const double more = counts ? std::log(static_cast<double>(repeats)) : 0;
        EXPECT_TRUE(close(y.get(r), want[r] + more, 2 * epsilon(dtype))) << name(dtype) << r;
      }
    }
  }
}

TEST(CrossEntropy, ForwardAndBackwardForEverySizeMemoryOrderAndDtype) {
  for (DType dtype : kFloats) {
    for (const Shape& shape : {Shape{131, 10}, Shape{5, 1}, Shape{3, 5003}, Shape{64, 33}}) {
      const int64_t rows = shape[0];
      const int64_t classes = shape[1];
      const Array values = sample(dtype, shape, -2, 2);
      const Array targets = filled(empty(DType::kI64, {rows}, {3}), [&](int64_t n) -> double {
        return n % 4 == 1 ? -100 : static_cast<double>(n * 7 % classes);
      });
      const Array g = filled(empty(dtype, {rows}, {2}), [](int64_t n) { return noise(n, 0, 1); });
      const std::vector<Strides> orders = some_strides(shape);
      for (size_t k = 0; k < orders.size(); ++k) {
        const Array logits = with_strides(values, orders[k]);
        const Array losses = empty(dtype, {rows}, {2});
        const Array lse = empty(dtype, {rows}, {3});
        CrossEntropy::cpu(logits.view, targets.view, -100, losses.view, lse.view);
        const Array glogits = empty(dtype, shape, orders[(k + 1) % orders.size()]);
        CrossEntropyBackward::cpu(logits.view, targets.view, -100, lse.view, g.view, glogits.view);
        const double eps = epsilon(dtype);
        const double lane = epsilon(dtype == DType::kF64 ? dtype : DType::kF32);
        for (int64_t n = 0; n < rows; ++n) {
          Row row;
          for (int64_t c = 0; c < classes; ++c) row.push_back(logits.get(n * classes + c));
          const double want = log_sum_exp(row);
          EXPECT_TRUE(close(lse.get(n), want, eps, 16 * lane)) << n;
          const bool ignored = n % 4 == 1;
          const auto target = static_cast<int64_t>(targets.get(n));
          const double loss = ignored ? 0 : want - row[static_cast<size_t>(target)];
          EXPECT_TRUE(close(losses.get(n), loss, eps, 16 * lane)) << n;
          for (int64_t c = 0; c < classes; ++c) {
            // From the lse that was given, which is rounded.
            const double p = std::exp(row[static_cast<size_t>(c)] - lse.get(n));
            const double slope = ignored ? 0 : g.get(n) * (p - (c == target ? 1 : 0));
            ASSERT_TRUE(close(glogits.get(n * classes + c), slope, eps, 8 * lane)) << n;
          }
        }
      }
    }
  }
}

TEST(CrossEntropy, LargeLogitsKeepTheDigitsOfASmallLoss) {
  const Array x =
      filled(empty(DType::kF32, {1, 2}), [](int64_t i) { return i == 0 ? 4096 : 4095; });
  const Array target = filled(empty(DType::kI64, {1}), [](int64_t) { return 0; });
  const Array loss = empty(DType::kF32, {1});
  const Array lse = empty(DType::kF32, {1});
  CrossEntropy::cpu(x.view, target.view, -1, loss.view, lse.view);
  EXPECT_NEAR(loss.get(0), std::log1p(std::exp(-1.0)), 1e-7);
}

TEST(CrossEntropy, ATargetThatIsNoClassIsAnErrorThatNamesRowAndValue) {
  const Array x = sample(DType::kF32, {4, 3});
  const Array losses = empty(DType::kF32, {4});
  const Array lse = empty(DType::kF32, {4});
  for (double bad : {3.0, -1.0}) {
    const Array targets =
        filled(empty(DType::kI64, {4}), [&](int64_t n) -> double { return n == 2 ? bad : -100; });
    for (bool backward : {false, true}) {
      try {
        backward
            ? CrossEntropyBackward::cpu(x.view, targets.view, -100, lse.view, losses.view, x.view)
            : CrossEntropy::cpu(x.view, targets.view, -100, losses.view, lse.view);
        FAIL();
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
        const std::string want = "row 2 has " + std::to_string(static_cast<int>(bad));
        EXPECT_NE(std::string(e.what()).find(want), std::string::npos) << e.what();
      }
    }
  }
}

TEST(Softmax, NothingIsNoWork) {
  for (const Shape& shape : {Shape{0, 4}, Shape{4, 0}}) {
    const Array x = empty(DType::kF32, shape);
    Softmax::cpu(x.view, x.view, 1);
    LogSoftmax::cpu(x.view, x.view, 0);
    SoftmaxBackward::cpu(x.view, x.view, x.view, 1);
  }
  const Array x = empty(DType::kF32, {2, 0});
  const Array targets = filled(empty(DType::kI64, {2}), [](int64_t) { return -100; });
  const Array losses = empty(DType::kF32, {2});
  const Array lse = empty(DType::kF32, {2});
  CrossEntropy::cpu(x.view, targets.view, -100, losses.view, lse.view);
  EXPECT_EQ(losses.values(), std::vector<double>(2, 0));
  EXPECT_EQ(lse.values(), std::vector<double>(2, -kInf));
}

TEST(Softmax, SeveralThreadsGiveTheSame) {
  const Array x = sample(DType::kF32, {1201, 91});
  const Array y = empty(DType::kF32, {1201, 91});
  std::vector<std::vector<double>> results;
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    LogSoftmax::cpu(x.view, y.view, 1);
    results.push_back(y.values());
  }
  set_num_threads(0);
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace lockstep::kernels
