#include "lockstep/nn/dropout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "layers.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

TEST(Dropout, ZerosAShareOfPAndScalesTheRest) {
  Generator generator{.seed = 3};
  const int64_t n = 20011;
  Tensor x = Tensor::empty({n});
  for (int64_t i = 0; i < n; ++i) x.data<float>()[i] = static_cast<float>(1 + i % 7);
  for (const double p : {0.1, 0.5, 0.75}) {
    const std::vector<float> y = dropout(x, p, &generator).to_vector<float>();
    int64_t zeros = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (y[static_cast<size_t>(i)] == 0) {
        ++zeros;
      } else {
        ASSERT_FLOAT_EQ(y[static_cast<size_t>(i)],
                        static_cast<float>(static_cast<double>(1 + i % 7) / (1 - p)));
      }
    }
    // Five standard deviations of a binomial count; the seed is fixed.
    EXPECT_NEAR(static_cast<double>(zeros), p * n, 5 * std::sqrt(n * p * (1 - p)));
  }
}

TEST(Dropout, TheGradientPassesWhereTheValueDid) {
  manual_seed(9);
  Dropout layer(0.4);
  const Tensor x = Tensor::full({7, 13}, 2).set_requires_grad();
  const Tensor y = layer(x);
  sum(y).backward();
  const std::vector<float> values = y.to_vector<float>();
  const std::vector<float> gradients = x.grad().to_vector<float>();
  bool dropped = false;
  bool kept = false;
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_FLOAT_EQ(values[i], 2 * gradients[i]);
    (values[i] == 0 ? dropped : kept) = true;
  }
  EXPECT_TRUE(dropped && kept);
}

TEST(Dropout, InEvalModeIsTheInputItself) {
  Dropout layer(0.9);
  layer.eval();
  const Tensor x = Tensor::ones({3});
  const uint64_t before = default_generator().offset;
  EXPECT_TRUE(layer(x).is_same(x));
  EXPECT_EQ(default_generator().offset, before);
}

TEST(Dropout, TheSameSeedDropsTheSameElementsAndTheNextCallOthers) {
  const Tensor x = Tensor::ones({101});
  manual_seed(4);
  const auto first = dropout(x, 0.5).to_vector<float>();
  const auto second = dropout(x, 0.5).to_vector<float>();
  manual_seed(4);
  EXPECT_EQ(dropout(x, 0.5).to_vector<float>(), first);
  EXPECT_NE(first, second);
}

TEST(Dropout, TheEndsOfTheRangeKeepAllAndNothing) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::from<float>({1, inf, std::nanf(""), -3}, {4});
  EXPECT_TRUE(dropout(x, 0).is_same(x));
  EXPECT_EQ(dropout(x, 1).to_vector<float>(), std::vector<float>(4, 0.0f));
}

TEST(Dropout, RefusesWhatIsNoProbability) {
  for (const double p : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THAT(error_of([&] { Dropout layer(p); }), HasSubstr("from 0 to 1"));
  }
  EXPECT_THAT(error_of([] { dropout(Tensor::arange(3), 0.5); }), HasSubstr("floating"));
}

}  // namespace
}  // namespace lockstep::nn
