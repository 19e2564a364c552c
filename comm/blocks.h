#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace lockstep::comm {

// How elements are shared out among ranks: block b is [begin(b), end(b)), and rank b is where a
// ring would finish it. The one place that fixes the order in which an element is folded:
// order(b, 0), order(b, 1), ..., order(b, ranks - 1), which ends at b.
struct Blocks {
  int64_t count = 0;  // elements in all
  int64_t size = 0;   // elements of every block but those at the end
  int ranks = 1;

  // The blocks of an all-reduce. Whole cache lines of every dtype, so that no two ranks write one.
  static Blocks of_all(int64_t count, int ranks) {
    constexpr int64_t kLine = 64;
    const int64_t even = count / ranks + (count % ranks != 0 ? 1 : 0);
    return {count, (even + kLine - 1) / kLine * kLine, ranks};
  }
  // The blocks of a reduce-scatter or an all-gather: every rank's own elements.
  static Blocks of_each(int64_t count_per_rank, int ranks) {
    return {count_per_rank * ranks, count_per_rank, ranks};
  }

  int64_t begin(int block) const {
    // block * size may not fit 64 bits where blocks at the end are empty.
    int64_t at = 0;
    return __builtin_mul_overflow(block, size, &at) ? count : std::min(at, count);
  }
  int64_t end(int block) const { return std::min(count, begin(block) + size); }
  int64_t length(int block) const { return end(block) - begin(block); }

  // Without a division, as above: small collectives would feel it.
  int order(int block, int step) const {
    const int at = block + 1 + step;
    return at < ranks ? at : at - ranks;
  }
};

}  // namespace lockstep::comm
