#include "lockstep/nn/collectives.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../errors.h"
#include "ranks.h"

namespace lockstep::nn {
namespace {

// Often, for a rank that did not wait for the others would have their counts now and then.
TEST(MeanOverSamples, WeighsEachRankByItsPartOfAllSamples) {
  with_ranks(3, [](const std::shared_ptr<comm::Communicator>& group) {
    const int rank = group->rank();
    for (int64_t step = 0; step < 50; ++step) {
      // Rank 1 has none, of which the mean is not a number.
      const int64_t samples = rank == 1 ? 0 : 3 + 4 * rank + step;
      const int64_t all = 14 + 2 * step;
      const Tensor loss = Tensor::from<double>({rank == 1 ? NAN : 1.0 + rank}, {});
      const double want =
          (1.0 + rank) * static_cast<double>(samples) * 3 / static_cast<double>(all);
      EXPECT_DOUBLE_EQ(mean_over_samples(loss, samples, *group).item(), want);
    }
    const Tensor loss = Tensor::from<double>({2.0}, {});
    EXPECT_EQ(mean_over_samples(loss, 0, *group).item(), 0);
    EXPECT_EQ(message_of(ErrorCode::kInvalidArgument, [&] { mean_over_samples(loss, -1, *group); }),
              "[mean_over_samples] want a number of samples, got -1");
  });
}

}  // namespace
}  // namespace lockstep::nn
