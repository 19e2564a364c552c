#include "lockstep/kernels/cpu/softmax_columns.h"

#include <gtest/gtest.h>

#include <string>

#include "arrays.h"
#include "lockstep/kernels/cpu/past_cache.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/softmax.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

using Kernel = void (*)(const View& a, const View& b, const View& out, int64_t axis);

struct Pass {
  const char* name;
  Kernel kernel;
};

constexpr Pass kPasses[] = {{"softmax", [](const View& a, const View&, const View& out,
                                           int64_t axis) { Softmax::cpu(a, out, axis); }},
                            {"log_softmax", [](const View& a, const View&, const View& out,
                                               int64_t axis) { LogSoftmax::cpu(a, out, axis); }},
                            {"softmax_backward", &SoftmaxBackward::cpu},
                            {"log_softmax_backward", &LogSoftmaxBackward::cpu}};

// The view with `count` columns of x (..., columns) from `first` on.
View some_columns(const View& x, int64_t first, int64_t count) {
  View out = x;
  out.shape.back() = count;
  out.data = static_cast<char*>(x.data) + first * static_cast<int64_t>(size_of(x.dtype));
  return out;
}

TEST(SoftmaxColumns, AreChosenWhereColumnsStandSideBySide) {
  EXPECT_TRUE(runs_in_columns(empty(DType::kF32, {3, 16}).view, 0));
  EXPECT_TRUE(runs_in_columns(empty(DType::kF32, {2, 3, 4, 4}).view, 1));
  EXPECT_FALSE(runs_in_columns(empty(DType::kF32, {3, 15}).view, 0));
  EXPECT_FALSE(runs_in_columns(empty(DType::kF32, {3, 16}).view, 1));
  EXPECT_FALSE(runs_in_columns(empty(DType::kF32, {3, 16}, {1, 3}).view, 0));
  EXPECT_FALSE(runs_in_columns(empty(DType::kF32, {}).view, 0));
}

// Around the strips' width and the rows that are taken together.
TEST(SoftmaxColumns, GiveWhatRowsGive) {
  for (const Pass& pass : kPasses) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      for (const int64_t rows : {1, 8, 17}) {
        for (const int64_t columns : {16, 65, 511, 512, 1100}) {
          const Array a = sample(dtype, {2, rows, columns}, -3, 3, 1);
          const Array b = sample(dtype, {2, rows, columns}, 0, 2 / static_cast<double>(rows), 2);
          const Array out = empty(dtype, {2, rows, columns});
          pass.kernel(a.view, b.view, out.view, 1);
          // A column's elements beside each other in memory.
          const Strides turned = {rows * columns, 1, rows};
          const Array want = empty(dtype, {2, rows, columns}, turned);
          pass.kernel(with_strides(a, turned).view, with_strides(b, turned).view, want.view, 1);
          const double lane = epsilon(dtype == DType::kF64 ? dtype : DType::kF32);
          for (int64_t i = 0; i < out.numel(); ++i) {
            ASSERT_TRUE(close(out.get(i), want.get(i), epsilon(dtype), 64 * lane))
                << pass.name << " " << name(dtype) << " " << rows << " rows of " << columns
                << " at " << i;
          }
        }
      }
    }
  }
}

TEST(SoftmaxColumns, AColumnsBitsDependOnItAlone) {
  constexpr int64_t kColumns = 1100;
  for (const Pass& pass : kPasses) {
    const Array a = sample(DType::kF32, {29, kColumns}, -3, 3, 1);
    const Array b = sample(DType::kF32, {29, kColumns}, 0, 0.1, 2);
    std::vector<std::vector<double>> results;
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      const Array out = empty(DType::kF32, {29, kColumns});
      pass.kernel(a.view, b.view, out.view, 0);
      results.push_back(out.values());
    }
    set_num_threads(0);
    EXPECT_EQ(results[0], results[1]) << pass.name;
    const Array few = empty(DType::kF32, {29, 20});
    for (int64_t first = 0; first + 20 <= kColumns; first += 20) {
      pass.kernel(some_columns(a.view, first, 20), some_columns(b.view, first, 20), few.view, 0);
      for (int64_t i = 0; i < few.numel(); ++i) {
        const auto at = static_cast<size_t>(i / 20 * kColumns + first + i % 20);
        ASSERT_EQ(few.get(i), results[0][at]) << pass.name << " " << first << " at " << i;
      }
    }
  }
}

// Results that no cache holds are stored past it, where their rows are whole lines.
TEST(SoftmaxColumns, LargeResultsAreTheSame) {
  for (const int64_t columns : {int64_t{1} << 20, (int64_t{1} << 20) + 5}) {
    const Array a = empty(DType::kF32, {9, columns});
    for (int64_t i = 0; i < a.numel(); ++i) {
      a.view.as<float>()[i] = static_cast<float>(i * 7919 % 1009) * 0.005f;
    }
    const auto memory = allocate(static_cast<size_t>(9 * columns * 4));  // aligned to lines
    const Array out = {memory, View{memory.get(), DType::kF32, kCpu, {9, columns}, {columns, 1}}};
    EXPECT_EQ(goes_past_cache(memory.get(), columns * 4, out.numel() * 4), columns % 16 == 0);
    for (const auto kernel : {&Softmax::cpu, &LogSoftmax::cpu}) {
      kernel(a.view, out.view, 0);
      const Array few = empty(DType::kF32, {9, 100});
      for (int64_t first = 0; first + 100 <= columns; first += 100000) {
        kernel(some_columns(a.view, first, 100), few.view, 0);
        const Array all = {out.memory, some_columns(out.view, first, 100)};
        ASSERT_EQ(few.values(), all.values()) << columns << " from " << first;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
