#include "lockstep/kernels/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

// Checks out against sums in double; errors may grow with the sum of the products' sizes.
void expect_product(const Array& a, const Array& b, const Array* bias, const Array& out) {
  const size_t d = out.shape().size();
  const int64_t m = out.shape()[d - 2];
  const int64_t n = out.shape()[d - 1];
  const int64_t k = a.shape()[d - 1];
  const double bound = 2 * epsilon(out.view.dtype) +
                       2 * std::sqrt(k) * (out.view.dtype == DType::kF64 ? 0x1p-52 : 0x1p-23);
  for (int64_t r = 0; r < out.numel(); ++r) {
    const int64_t j = r % n;
    const int64_t row = r / n;
    const int64_t batch = row / m;
    double want = bias == nullptr ? 0 : bias->get(j);
    double size = std::abs(want);
    for (int64_t p = 0; p < k; ++p) {
      const double product = a.get(row * k + p) * b.get((batch * k + p) * n + j);
      want += product;
      size += std::abs(product);
    }
    ASSERT_TRUE(close(out.get(r), want, bound, bound * size))
        << name(out.view.dtype) << " (" << m << ", " << k << ", " << n << ") at " << r;
  }
}

const std::vector<std::vector<int64_t>> kSizes = {  // m, k, n
    {1, 7, 5},
    {5, 1, 3},
    {6, 5, 1},
    {17, 33, 9}};

TEST(MatMul, EverySizeDtypeAndStride) {
  for (DType dtype : kFloats) {
    for (const auto& s : kSizes) {
      const Array a = sample(dtype, {s[0], s[1]});
      const Array b = sample(dtype, {s[1], s[2]}, -1.5, 1.5, 1);
      const Array bias = sample(dtype, {s[2]}, -1.5, 1.5, 2);
      for (const Strides& a_strides : some_strides(a.shape())) {
        for (const Strides& b_strides : some_strides(b.shape())) {
          for (const Strides& out_strides : some_strides({s[0], s[2]})) {
            const Array left = with_strides(a, a_strides);
            const Array right = with_strides(b, b_strides);
            const Array out =
                filled(empty(dtype, {s[0], s[2]}, out_strides), [](int64_t) { return kNan; });
            MatMul::cpu(left.view, right.view, out.view, nullptr);
            expect_product(a, b, nullptr, out);
            MatMul::cpu(left.view, right.view, out.view, &bias.view);
            expect_product(a, b, &bias, out);
          }
        }
      }
    }
  }
}

TEST(MatMul, Batches) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    for (int64_t batch : {1, 3}) {
      for (const auto& s : kSizes) {
        const Array a = sample(dtype, {batch, s[0], s[1]});
        const Array b = sample(dtype, {batch, s[1], s[2]}, -1.5, 1.5, 1);
        for (const Strides& a_strides : some_strides(a.shape())) {
          for (const Strides& b_strides : some_strides(b.shape())) {
            const Array left = with_strides(a, a_strides);
            const Array right = with_strides(b, b_strides);
            const Array out = empty(dtype, {batch, s[0], s[2]});
            MatMul::cpu(left.view, right.view, out.view, nullptr);
            expect_product(a, b, nullptr, out);
          }
        }
      }
    }
  }
}

TEST(MatMul, LargerThanOneBlock) {
  for (DType dtype : kFloats) {
    const Array a = sample(dtype, {65, 130});
    const Array b = sample(dtype, {130, 67}, -1.5, 1.5, 1);
    const Array out = empty(dtype, {65, 67});
    MatMul::cpu(a.view, b.view, out.view, nullptr);
    expect_product(a, b, nullptr, out);
  }
}

TEST(MatMul, LinesOfAMultipleOf2KiB) {
  for (const int64_t batch : {1, 2}) {
    for (const int64_t long_side : {512, 1024}) {
      for (const int64_t others : {3, 257}) {
        const Array a = sample(DType::kF32, {batch, long_side, 37});
        const Array b = sample(DType::kF32, {batch, 37, others}, -1.5, 1.5, 1);
        const Array a_by_columns = with_strides(a, {long_side * 37, 1, long_side});
        const Array out = empty(DType::kF32, {batch, long_side, others});
        MatMul::cpu(a_by_columns.view, b.view, out.view, nullptr);
        expect_product(a, b, nullptr, out);

        const Array c = sample(DType::kF32, {batch, others, 37}, -1.5, 1.5, 2);
        const Array d = sample(DType::kF32, {batch, 37, long_side}, -1.5, 1.5, 3);
        const Array bias = sample(DType::kF32, {long_side}, -1.5, 1.5, 4);
        const Array wide = empty(DType::kF32, {batch, others, long_side});
        MatMul::cpu(c.view, d.view, wide.view, &bias.view);
        expect_product(c, d, &bias, wide);
      }
    }
  }
}

TEST(MatMul, ABroadcastOperandIsReadAgainForEachRowOrMatrix) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    Array a = sample(dtype, {1, 4, 5});
    a.view.shape = {3, 4, 5};
    a.view.strides[0] = 0;
    Array b = sample(dtype, {3, 1, 6});
    b.view.shape = {3, 5, 6};
    b.view.strides[1] = 0;
    const Array out = empty(dtype, {3, 4, 6});
    MatMul::cpu(a.view, b.view, out.view, nullptr);
    expect_product(a, b, nullptr, out);
    Array bias = sample(dtype, {1});
    bias.view.shape = {6};
    bias.view.strides = {0};
    MatMul::cpu(a.view, b.view, out.view, &bias.view);
    expect_product(a, b, &bias, out);
  }
}

TEST(MatMul, OverlappingRowsOfOneBufferAreAMatrixToo) {
  Array a = sample(DType::kF32, {12});
  a.view.shape = {5, 6};
  a.view.strides = {1, 1};  // row i is elements i to i + 5
  const Array b = sample(DType::kF32, {6, 3});
  const Array out = empty(DType::kF32, {5, 3});
  MatMul::cpu(a.view, b.view, out.view, nullptr);
  expect_product(a, b, nullptr, out);
}

TEST(MatMul, NoTermsGiveTheBiasOrZeros) {
  for (DType dtype : kFloats) {
    const Array a = empty(dtype, {3, 0});
    const Array b = empty(dtype, {0, 4});
    const Array bias = sample(dtype, {4});
    const Array out = filled(empty(dtype, {3, 4}), [](int64_t) { return kNan; });
    MatMul::cpu(a.view, b.view, out.view, nullptr);
    for (double v : out.values()) EXPECT_EQ(v, 0);
    MatMul::cpu(a.view, b.view, out.view, &bias.view);
    for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(out.get(i), bias.get(i % 4));
  }
}

TEST(MatMul, NoRowsAreNothingToDo) {
  const Array a = empty(DType::kF32, {0, 3});
  const Array b = sample(DType::kF32, {3, 4});
  const Array out = empty(DType::kF32, {0, 4});
  MatMul::cpu(a.view, b.view, out.view, nullptr);
}

TEST(MatMul, IntegersAreAnErrorThatNamesTheDtype) {
  const Array a = sample(DType::kI64, {2, 2}, 0, 9);
  try {
    MatMul::cpu(a.view, a.view, a.view, nullptr);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "[matmul] want a floating dtype, got i64");
  }
}

TEST(MatMul, NanAndInfinityGoThrough) {
  for (DType dtype : kFloats) {
    const Array a = filled(empty(dtype, {2, 2}),
                           [](int64_t i) { return i == 0 ? kNan : static_cast<double>(i); });
    const Array b = filled(empty(dtype, {2, 2}), [](int64_t i) { return i == 3 ? kInf : 1; });
    const Array out = empty(dtype, {2, 2});
    MatMul::cpu(a.view, b.view, out.view, nullptr);
    EXPECT_TRUE(std::isnan(out.get(0)) && std::isnan(out.get(1)));
    EXPECT_EQ(out.get(2), 5);
    EXPECT_EQ(out.get(3), kInf);
  }
}

// Ranks may be threads of one process, all multiplying at once, with one thread or with several.
TEST(MatMul, ThreadsDoNotDisturbEachOther) {
  for (int threads : {1, 2}) {
    set_num_threads(threads);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([rank] {
        for (int64_t size : {5, 40, 33, 5, 40}) {
          const Array a = sample(DType::kF32, {size, size + rank}, -1, 1, rank);
          const Array b = sample(DType::kF32, {size + rank, size}, -1, 1, rank + 9);
          const Array out = empty(DType::kF32, {size, size});
          MatMul::cpu(a.view, b.view, out.view, nullptr);
          expect_product(a, b, nullptr, out);
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  set_num_threads(0);
}

}  // namespace
}  // namespace lockstep::kernels
