#include "lockstep/kernels/cpu/past_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"

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

}  // namespace
}  // namespace lockstep::kernels
