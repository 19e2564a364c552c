#include "lockstep/kernels/cpu/past_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/layer_norm.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/scan.h"
#include "lockstep/kernels/softmax.h"

namespace lockstep::kernels {
namespace {

struct Floats {
  Floats(const Shape& shape, const Strides& strides)
      : memory(allocate(static_cast<size_t>(numel(shape)) * sizeof(float))),
        view{memory.get(), DType::kF32, kCpu, shape, strides} {}
  float* data() const { return view.as<float>(); }

  std::shared_ptr<void> memory;  // aligned to lines
  View view;
};

Floats counted(const Shape& shape, const Strides& strides) {
  Floats out(shape, strides);
  for (int64_t i = 0; i < numel(shape); ++i) out.data()[i] = static_cast<float>(i);
  return out;
}

TEST(PastCache, CopiesLinesFromAnyPlace) {
  const Floats x = counted({100}, {1});
  const Floats y({96}, {1});
  for (const int64_t from : {0, 1, 3}) {
    copy_past_cache(x.data() + from, y.data(), 6 * kCacheLine);
    end_past_cache();
    EXPECT_EQ(std::memcmp(x.data() + from, y.data(), 6 * kCacheLine), 0) << from;
  }
}

TEST(PastCache, IsForLargeResultsOfWholeLines) {
  const Floats y({64}, {1});
  EXPECT_FALSE(goes_past_cache(y.data(), 64, kPastCacheBytes - 1));
  EXPECT_FALSE(goes_past_cache(y.data(), 68, kPastCacheBytes));
  EXPECT_FALSE(goes_past_cache(y.data() + 1, 64, kPastCacheBytes));
#ifdef __x86_64__
  EXPECT_TRUE(goes_past_cache(y.data(), 64, kPastCacheBytes));
#endif
}

// Of whole lines, with and without whole tiles, and of rows that are no lines.
TEST(PastCache, LargeTransposesAreRight) {
  set_num_threads(3);
  for (const Shape& shape : {Shape{2081, 4160}, Shape{4160, 2088}}) {
    const Floats x = counted(shape, {1, shape[0]});
    const Floats y(shape, {shape[1], 1});
    Copy::cpu(x.view, y.view);
    int64_t wrong = 0;
    for (int64_t i = 0; i < shape[0]; ++i) {
      for (int64_t j = 0; j < shape[1]; ++j) {
        wrong += y.data()[i * shape[1] + j] != static_cast<float>(j * shape[0] + i) ? 1 : 0;
      }
    }
    EXPECT_EQ(wrong, 0) << shape[0] << " by " << shape[1];
  }
  set_num_threads(0);
}

// Attention's heads: runs that stand apart in both.
TEST(PastCache, LargeCopiesOfShortRunsAreRight) {
  for (const int64_t run : {512, 520}) {
    const Shape shape = {8, 16, 131, run};
    const Floats x = counted(shape, {131 * 16 * run, run, 16 * run, 1});
    const Floats y(shape, contiguous_strides(shape));
    Copy::cpu(x.view, y.view);
    int64_t wrong = 0;
    int64_t at = 0;
    for (int64_t n = 0; n < 8; ++n) {
      for (int64_t h = 0; h < 16; ++h) {
        for (int64_t s = 0; s < 131; ++s) {
          for (int64_t i = 0; i < run; ++i, ++at) {
            const int64_t want = ((n * 131 + s) * 16 + h) * run + i;
            wrong += y.data()[at] != static_cast<float>(want) ? 1 : 0;
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0) << run;
  }
}

// Values of either sign, no two neighbours alike.
Floats mixed(const Shape& shape) {
  Floats out(shape, contiguous_strides(shape));
  for (int64_t i = 0; i < numel(shape); ++i) {
    out.data()[i] = static_cast<float>(i * 7919 % 1013 - 506) * 0.01f;
  }
  return out;
}

View part_of(const View& x, int64_t first, int64_t count) {
  View out = x;
  out.data = static_cast<char*>(x.data) + first * static_cast<int64_t>(size_of(x.dtype));
  out.shape = {count};
  out.strides = {1};
  return out;
}

// Whether f(view of all, result) gives what f(view of a part, result) does in parts that no cache
// is too small for.
template <class F>
void expect_as_in_parts(const View& x, const View& y, const F& f) {
  f(x, y, 0);
  constexpr int64_t kPart = 100003;
  const auto size = static_cast<int64_t>(size_of(y.dtype));
  const auto memory = allocate(static_cast<size_t>(kPart * size));
  int64_t wrong = 0;
  for (int64_t first = 0; first < y.numel(); first += kPart) {
    const int64_t n = std::min(kPart, y.numel() - first);
    const View part = {memory.get(), y.dtype, kCpu, {n}, {1}};
    f(part_of(x, first, n), part, first);
    const char* all = static_cast<const char*>(y.data) + first * size;
    wrong += std::memcmp(all, memory.get(), static_cast<size_t>(n * size)) != 0 ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(PastCache, LargeElementWiseResultsAreRight) {
  const int64_t count = kPastCacheBytes / 4 + 1237;
  const Floats x = mixed({count});
  const Floats other = counted({count}, {1});
  const Floats y({count + 1}, {1});
  float number = 1.5f;
  const auto scaled = [&](const View& in, const View& out, int64_t) {
    const View factor = {&number, DType::kF32, kCpu, out.shape, {0}};
    Binary<Mul>::cpu(in, factor, out);
  };
  const auto added = [&](const View& in, const View& out, int64_t first) {
    Binary<Add>::cpu(in, part_of(other.view, first, out.shape[0]), out);
  };
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    for (const int64_t from : {0, 1}) {  // whole lines, and none
      SCOPED_TRACE(::testing::Message() << threads << " threads, from " << from);
      expect_as_in_parts(x.view, part_of(y.view, from, count), scaled);
      expect_as_in_parts(x.view, part_of(y.view, from, count), added);
    }
  }
  set_num_threads(0);
}

TEST(PastCache, LargeConversionsAreRight) {
  const int64_t count = kPastCacheBytes / 2 + 1237;
  const Floats x = mixed({count});
  const auto memory = allocate(static_cast<size_t>(count) * 2);
  const auto convert = [](const View& in, const View& out, int64_t) { Copy::cpu(in, out); };
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const View narrow = {memory.get(), dtype, kCpu, {count}, {1}};
    expect_as_in_parts(x.view, narrow, convert);
    const Floats back({count}, {1});
    expect_as_in_parts(narrow, back.view, convert);
  }
}

// A result that takes the place of an operand is not stored past the cache, and is right.
TEST(PastCache, LargeResultsInPlaceAreRight) {
  const int64_t count = kPastCacheBytes / 4 + 1237;
  const Floats x = mixed({count});
  const Floats once({count}, {1});
  Binary<Add>::cpu(x.view, x.view, once.view);
  Binary<Add>::cpu(x.view, x.view, x.view);
  EXPECT_EQ(std::memcmp(x.data(), once.data(), static_cast<size_t>(count) * 4), 0);
}

// Values of any floating dtype, and a result beside them.
struct Rows {
  Rows(DType dtype, const Shape& shape)
      : size(static_cast<int64_t>(size_of(dtype))),
        bytes(static_cast<size_t>(numel(shape) * size)),
        from(allocate(bytes)),
        to(allocate(bytes)),
        x{from.get(), dtype, kCpu, shape, contiguous_strides(shape)},
        y{to.get(), dtype, kCpu, shape, contiguous_strides(shape)} {
    Copy::cpu(mixed(shape).view, x);
  }

  int64_t size;
  size_t bytes;
  std::shared_ptr<void> from, to;
  View x, y;
};

View some_rows(const View& v, int64_t first, int64_t rows) {
  View out = v;
  out.data =
      static_cast<char*>(v.data) + first * v.strides[0] * static_cast<int64_t>(size_of(v.dtype));
  out.shape[0] = rows;
  return out;
}

// Rows of whole lines, and of none; rows for which there is a buffer, and longer ones.
void check_rows(DType dtype, const Shape& shape) {
  SCOPED_TRACE(::testing::Message() << name(dtype) << " " << shape[1]);
  const Rows all(dtype, shape);
  constexpr int64_t kFew = 101;
  const Rows few(dtype, {kFew, shape[1]});
  const auto check = [&](const auto& f) {
    f(all.x, all.y);
    for (int64_t first = 0; first < shape[0]; first += kFew) {
      const int64_t rows = std::min(kFew, shape[0] - first);
      const View part = some_rows(few.y, 0, rows);
      f(some_rows(all.x, first, rows), part);
      ASSERT_EQ(std::memcmp(some_rows(all.y, first, rows).data, part.data,
                            static_cast<size_t>(rows * shape[1] * all.size)),
                0)
          << "from row " << first;
    }
  };
  const Rows sums(dtype == DType::kF64 ? DType::kF64 : DType::kF32, {2, shape[0]});
  check([](const View& in, const View& out) { Softmax::cpu(in, out, 1); });
  check([](const View& in, const View& out) { LogSoftmax::cpu(in, out, 1); });
  check([&](const View& in, const View& out) {
    const auto row = [&](int64_t r) {
      View v = some_rows(sums.y, r, 1);
      v.shape = {in.shape[0]};
      v.strides = {1};
      return v;
    };
    LayerNorm::cpu(in, nullptr, nullptr, 1e-5, out, row(0), row(1));
  });
}

TEST(PastCache, LargeResultsOfRowsAreRight) {
  for (const Shape& shape : {Shape{8200, 1024}, Shape{8200, 1031}, Shape{1700, 5120}}) {
    check_rows(DType::kF32, shape);
  }
  check_rows(DType::kF64, {1700, 4096});
  check_rows(DType::kBF16, {8200, 2048});
}

// Rows of one line's multiple and others, also where each of several starts at a place of its own
// in a line: what is stored by lines must start one.
TEST(PastCache, LargeSumsAlongTheFirstDimensionAreRight) {
  for (const Shape& shape : {Shape{2100, 4096}, Shape{2100, 4100}, Shape{300, 16, 2049},
                             Shape{64, 32, 5000}, Shape{300, 16, 2064}}) {
    const Floats x = mixed(shape);
    const Floats y(shape, contiguous_strides(shape));
    const int64_t beside = numel(shape) / shape[0];
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      for (const bool reverse : {false, true}) {
        CumSum::cpu(x.view, y.view, 0, reverse);
        std::vector<double> sums(static_cast<size_t>(beside));
        int64_t wrong = 0;
        for (int64_t k = 0; k < shape[0]; ++k) {
          const int64_t row = reverse ? shape[0] - 1 - k : k;
          for (int64_t j = 0; j < beside; ++j) {
            double& sum = sums[static_cast<size_t>(j)];
            sum += static_cast<double>(x.data()[row * beside + j]);
            wrong += y.data()[row * beside + j] != static_cast<float>(sum) ? 1 : 0;
          }
        }
        EXPECT_EQ(wrong, 0) << beside << (reverse ? " reverse" : "") << " by " << threads;
      }
    }
  }
  set_num_threads(0);
}

}  // namespace
}  // namespace lockstep::kernels
