#include "lockstep/nn/comm_hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>

#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/matmul.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/optim.h"
#include "ranks.h"

namespace lockstep::nn {
namespace {

using Group = std::shared_ptr<comm::Communicator>;
using MakeHook = std::function<std::shared_ptr<CommHook>()>;

// A matrix and a vector; the loss is their product with what it is given, so that this is their
// gradient.
class Pair : public Module {
 public:
  Pair(int64_t rows, int64_t columns)
      : matrix(Tensor::zeros({rows, columns})), vector(Tensor::zeros({columns})) {
    register_parameter("matrix", matrix);
    register_parameter("vector", vector);
  }
  Tensor loss(const Tensor& for_matrix, const Tensor& for_vector) {
    return sum(matrix * for_matrix) + sum(vector * for_vector);
  }
  std::string type_name() const override { return "Pair"; }
  Tensor matrix, vector;
};

// Gradients of rank `rank` in backward `step`.
Tensor wave(const Shape& shape, int rank, int step) {
  Tensor out = Tensor::empty(shape);
  for (int64_t i = 0; i < out.numel(); ++i) {
    out.data<float>()[i] =
        std::sin(0.37f * static_cast<float>(i + 1) + static_cast<float>(3 * rank + step));
  }
  return out;
}

// Runs backwards with the hook on some ranks and adds up each step's gradients, of the hook and of
// the plain average; both are the same on all ranks.
struct Sums {
  std::vector<float> hooked, plain;
};
Sums run(const MakeHook& make, int ranks, int steps, bool same_gradient, Shape shape = {13, 11}) {
  Sums sums;
  std::mutex mutex;
  std::vector<std::vector<float>> last(static_cast<size_t>(ranks));
  with_ranks(ranks, [&](const Group& group) {
    const auto net = std::make_shared<Pair>(shape[0], shape[1]);
    DataParallel model(net, group);
    model.set_comm_hook(make());
    Sums mine;
    for (int step = 0; step < steps; ++step) {
      net->zero_grad();
      const int moment = same_gradient ? 0 : step;
      model
          .call([&] {
            return net->loss(wave(shape, group->rank(), moment),
                             wave({shape[1]}, group->rank(), moment));
          })
          .backward();
      std::vector<float> got = net->matrix.grad().to_vector<float>();
      const std::vector<float> more = net->vector.grad().to_vector<float>();
      got.insert(got.end(), more.begin(), more.end());
      mine.hooked.resize(got.size());
      mine.plain.resize(got.size());
      for (int r = 0; r < ranks; ++r) {
        std::vector<float> theirs = wave(shape, r, moment).to_vector<float>();
        const std::vector<float> rest = wave({shape[1]}, r, moment).to_vector<float>();
        theirs.insert(theirs.end(), rest.begin(), rest.end());
        for (size_t i = 0; i < theirs.size(); ++i) {
          mine.plain[i] += theirs[i] / static_cast<float>(ranks);
        }
      }
      for (size_t i = 0; i < got.size(); ++i) mine.hooked[i] += got[i];
    }
    const std::lock_guard lock(mutex);
    last[static_cast<size_t>(group->rank())] = mine.hooked;
    if (group->rank() == 0) sums = mine;
  });
  for (const auto& values : last) {
    EXPECT_EQ(std::memcmp(values.data(), last[0].data(), values.size() * sizeof(float)), 0)
        << "the ranks differ";
  }
  return sums;
}

double distance(const Sums& sums) {
  double square = 0, norm = 0;
  for (size_t i = 0; i < sums.plain.size(); ++i) {
    square += std::pow(sums.hooked[i] - sums.plain[i], 2);
    norm += std::pow(sums.plain[i], 2);
  }
  return std::sqrt(square / norm);
}

// Of any element, in a sum of steps whose gradients are at most 1.
double greatest_error(const Sums& sums) {
  double greatest = 0;
  for (size_t i = 0; i < sums.plain.size(); ++i) {
    greatest = std::max(greatest, std::abs(double{sums.hooked[i]} - sums.plain[i]));
  }
  return greatest;
}

TEST(CastHook, IsWithinTheRoundingOfItsDtype) {
  for (const int ranks : {2, 3}) {
    // Half a place each for what is sent and for the result.
    const auto bf16 = [] { return std::make_shared<CastHook>(DType::kBF16); };
    const auto f16 = [] { return std::make_shared<CastHook>(DType::kF16); };
    EXPECT_LT(greatest_error(run(bf16, ranks, 1, false)), 0x1p-8);
    EXPECT_LT(greatest_error(run(f16, ranks, 1, false)), 0x1p-11);
  }
}

// Case 13 of the public reports.
TEST(CastHook, AveragesFortyThousandAndFortyThousandInF16) {
  with_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<Pair>(1, 1);
    DataParallel model(net, group);
    model.set_comm_hook(std::make_shared<CastHook>(DType::kF16));
    const Tensor big = Tensor::full({1, 1}, 40000);
    model.call([&] { return net->loss(big, big.reshape({1})); }).backward();
    EXPECT_EQ(net->matrix.grad().item(), 40000);
  });
}

TEST(CastHook, SendsInNothingButTheTwoShortDtypes) {
  EXPECT_THROW(CastHook(DType::kF32), Error);
  EXPECT_THROW(CastHook(DType::kI32), Error);
}

TEST(BlockQuantHook, IsWithinHalfACodeOfEachBlock) {
  const auto make = [] { return std::make_shared<BlockQuantHook>(16, false); };
  for (const int ranks : {2, 3}) {
    EXPECT_LT(greatest_error(run(make, ranks, 1, false)), 0.5 / 127 + 1e-6);
  }
}

// What rounding loses in one backward comes with the next.
TEST(BlockQuantHook, ErrorFeedbackKeepsTheSumOfMany) {
  const int steps = 64;
  const Sums with = run([] { return std::make_shared<BlockQuantHook>(64); }, 2, steps, true);
  const Sums without =
      run([] { return std::make_shared<BlockQuantHook>(64, false); }, 2, steps, true);
  EXPECT_LT(distance(with), distance(without) / 8);
}

TEST(BlockQuantHook, SpreadsAValueThatIsNotFinite) {
  with_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<Pair>(2, 3);
    DataParallel model(net, group);
    model.set_comm_hook(std::make_shared<BlockQuantHook>(4));
    Tensor gradient = Tensor::ones({2, 3});
    if (group->rank() == 1) gradient.data<float>()[0] = INFINITY;
    model.call([&] { return net->loss(gradient, Tensor::ones({3})); }).backward();
    EXPECT_FALSE(std::isfinite(net->matrix.grad().select(0, 0).select(0, 0).item()));
  });
}

TEST(TopKHook, SendsTheGreatestAndTheRestLater) {
  with_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<Pair>(1, 3);
    DataParallel model(net, group);
    model.set_comm_hook(std::make_shared<TopKHook>(1.0 / 6));
    const Tensor zero = Tensor::zeros({3});
    const auto step = [&](std::initializer_list<float> values) {
      net->zero_grad();
      model.call([&] { return net->loss(Tensor::from(values, {1, 3}), zero); }).backward();
      return net->matrix.grad().to_vector<float>();
    };
    const float sign = group->rank() == 0 ? 1 : 3;
    EXPECT_THAT(step({8 * sign, 2 * sign, 0}), testing::ElementsAre(16, 0, 0));
    EXPECT_THAT(step({0, 2 * sign, 0}), testing::ElementsAre(0, 8, 0));  // 2 of before and 2
    EXPECT_THAT(step({0, 0, sign}), testing::ElementsAre(0, 0, 2));
  });
}

TEST(TopKHook, ErrorFeedbackKeepsTheSumOfMany) {
  const Sums with = run([] { return std::make_shared<TopKHook>(0.25); }, 3, 80, true);
  const Sums without = run([] { return std::make_shared<TopKHook>(0.25, false); }, 3, 80, true);
  EXPECT_LT(distance(with), 0.1);
  EXPECT_GT(distance(without), 0.3);
}

TEST(PowerSgdHook, AveragesPlainlyAtFirst) {
  const auto make = [] {
    return std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_iteration = 3});
  };
  EXPECT_LT(distance(run(make, 2, 3, false)), 1e-6);
}

TEST(PowerSgdHook, ErrorFeedbackKeepsTheSumOfMany) {
  const auto make = [] {
    return std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_iteration = 0});
  };
  EXPECT_LT(distance(run(make, 2, 60, true)), 0.1);
}

// A matrix of rank one is what it sends.
TEST(PowerSgdHook, IsExactForAMatrixOfItsRank) {
  with_ranks(3, [](const Group& group) {
    const auto net = std::make_shared<Pair>(17, 9);
    DataParallel model(net, group);
    model.set_comm_hook(std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_iteration = 0}));
    const Tensor outer = matmul(wave({17, 1}, 0, 0), wave({1, 9}, 0, 1));
    const float scale = static_cast<float>(group->rank() + 1);
    model.call([&] { return net->loss(outer * scale, Tensor::full({9}, scale)); }).backward();
    const std::vector<float> want = (outer * 2.0).to_vector<float>();
    const std::vector<float> got = net->matrix.grad().to_vector<float>();
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5);
    EXPECT_THAT(net->vector.grad().to_vector<float>(), testing::Each(2));
  });
}

TEST(CommHook, ThatThrowsEndsTheBackwardOnEveryRank) {
  class Throws : public CommHook {
    void start(GradBucket& bucket, comm::Communicator& group) override {
      check(group.rank() != 1, "Throws", [&] { return "not " + bucket.names[0]; });
    }
    void finish(GradBucket&, comm::Communicator& group) override { group.barrier().wait(); }
  };
  with_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<Pair>(2, 3);
    DataParallel model(net, group);
    model.set_comm_hook(std::make_shared<Throws>());
    const Tensor loss = model.call([&] {
      return net->loss(Tensor::ones({2, 3}), Tensor::ones({3}));
    });
    EXPECT_THROW(loss.backward(), Error);
  });
}

}  // namespace
}  // namespace lockstep::nn
