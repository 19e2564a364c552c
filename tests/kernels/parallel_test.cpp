#include "lockstep/kernels/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace lockstep {
namespace {

TEST(Parallel, CoversEachIndexOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    for (const int64_t n : {0, 1, 2, 5, 100, 101}) {
      for (const int64_t grain : {1, 10, 1000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (const auto& count : seen) EXPECT_EQ(count, 1) << n << " by " << grain;
      }
    }
  }
  set_num_threads(0);
}

TEST(Parallel, GivesEachRankItsShareOfTheCores) {
  set_num_threads(5);
  EXPECT_EQ(num_threads(), 5);
  set_num_threads(0);
  const int alone = num_threads();
  set_local_ranks(1000000);
  EXPECT_EQ(num_threads(), std::getenv("OMP_NUM_THREADS") != nullptr ? alone : 1);
  set_local_ranks(1);
  EXPECT_EQ(num_threads(), alone);
}

}  // namespace
}  // namespace lockstep
