#include "lockstep/nn/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/core/autograd.h"
#include "lockstep/core/gradcheck.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/collectives.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/sequential.h"
#include "ranks.h"

namespace lockstep::nn {
namespace {

using testing::HasSubstr;
using testing::Pointwise;
using testing::ThrowsMessage;

using Group = std::shared_ptr<comm::Communicator>;

MATCHER_P(NearWithin, tolerance, "") {
  return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance;
}

Tensor random_batch(const Shape& shape, uint64_t seed) {
  manual_seed(seed);
  return randn(shape, {DType::kF64}) * 2.0 + 0.5;
}

// What plain batch norm gives for the whole batch: output, input gradient, weight gradient.
struct Plain {
  Tensor y, x_grad, weight_grad, running_mean, running_var;
};

Tensor weights_for(int64_t channels) {
  return (Tensor::arange(channels).to(DType::kF64) * 0.3 + 0.7).set_requires_grad();
}

Plain plain(const Tensor& x, const Tensor& g) {
  BatchNormArguments a;
  a.weight = weights_for(x.size(1));
  a.running_mean = Tensor::zeros({x.size(1)}, {DType::kF64});
  a.running_var = Tensor::ones({x.size(1)}, {DType::kF64});
  Tensor leaf = x.clone().set_requires_grad();
  const Tensor y = batch_norm(leaf, a);
  y.backward(g);
  return {y.detach(), leaf.grad(), a.weight.grad(), a.running_mean, a.running_var};
}

// Case 1 of the public reports.
TEST(SyncBatchNorm, RunningVarIsUnbiasedOverTheGroup) {
  std::vector<std::vector<float>> variances(2);
  with_ranks(2, [&](const Group& group) {
    SyncBatchNorm norm(1, group);
    norm(group->rank() == 0 ? Tensor::from<float>({1, 2, 3}, {3, 1})
                            : Tensor::from<float>({10}, {1, 1}));
    EXPECT_FLOAT_EQ(static_cast<float>(norm.running_mean.item()), 0.4f);
    EXPECT_FLOAT_EQ(static_cast<float>(norm.running_var.item()), 2.566667f);
    variances[static_cast<size_t>(group->rank())] = norm.running_var.to_vector<float>();
  });
  EXPECT_EQ(variances[0], variances[1]);
}

// Case 2 of the public reports, and its whole kind: any split of the batch, empty ones included.
TEST(SyncBatchNorm, EqualsBatchNormOverTheWholeBatchForAnySplit) {
  const std::vector<std::vector<int64_t>> splits = {
      {4, 0}, {3, 1}, {0, 5, 2}, {1, 1, 1}, {2, 0, 0, 3}};
  const std::vector<Shape> tails = {{3}, {2, 5}, {3, 2, 3}, {2, 2, 1, 3}};
  for (const auto& split : splits) {
    for (const Shape& tail : tails) {
      int64_t total = 0;
      for (int64_t n : split) total += n;
      Shape shape = {total};
      shape.insert(shape.end(), tail.begin(), tail.end());
      const Tensor x = random_batch(shape, 5);
      const Tensor g = random_batch(shape, 6);
      const Plain whole = plain(x, g);
      with_ranks(static_cast<int>(split.size()), [&](const Group& group) {
        const auto r = static_cast<size_t>(group->rank());
        int64_t start = 0;
        for (size_t i = 0; i < r; ++i) start += split[i];
        const auto mine = [&](const Tensor& all) {
          return all.narrow(0, start, split[r]).to_vector<double>();
        };
        BatchNormArguments a;
        a.weight = weights_for(shape[1]);
        a.running_mean = Tensor::zeros({shape[1]}, {DType::kF64});
        a.running_var = Tensor::ones({shape[1]}, {DType::kF64});
        a.group = make_batch_norm_group(group);
        Tensor leaf = x.narrow(0, start, split[r]).clone().set_requires_grad();
        const Tensor y = batch_norm(leaf, a);
        EXPECT_THAT(y.to_vector<double>(), Pointwise(NearWithin(1e-10), mine(whole.y)));
        y.backward(g.narrow(0, start, split[r]));
        EXPECT_THAT(leaf.grad().to_vector<double>(),
                    Pointwise(NearWithin(1e-10), mine(whole.x_grad)));
        const Tensor weight_grad = all_reduce(a.weight.grad(), group);
        EXPECT_THAT(weight_grad.to_vector<double>(),
                    Pointwise(NearWithin(1e-9), whole.weight_grad.to_vector<double>()));
        EXPECT_THAT(a.running_mean.to_vector<double>(),
                    Pointwise(NearWithin(1e-12), whole.running_mean.to_vector<double>()));
        EXPECT_THAT(a.running_var.to_vector<double>(),
                    Pointwise(NearWithin(1e-12), whole.running_var.to_vector<double>()));
      });
    }
  }
}

TEST(SyncBatchNorm, HasSecondOrderGradients) {
  const Tensor x = random_batch({5, 3}, 7);
  const auto penalty = [](const Tensor& leaf, const BatchNormArguments& a, const Tensor& weights) {
    const Tensor y = batch_norm(leaf, a);
    return grad({sum(y * y * weights)}, {leaf}, {}, {.create_graph = true})[0];
  };
  const Tensor weights = random_batch({5, 3}, 8);
  Tensor whole = x.clone().set_requires_grad();
  BatchNormArguments plain_arguments;
  const Tensor first = penalty(whole, plain_arguments, weights);
  sum(first * first).backward();
  with_ranks(2, [&](const Group& group) {
    const int64_t start = group->rank() == 0 ? 0 : 2;
    const int64_t count = group->rank() == 0 ? 2 : 3;
    BatchNormArguments a;
    a.group = make_batch_norm_group(group);
    Tensor leaf = x.narrow(0, start, count).clone().set_requires_grad();
    const Tensor mine = penalty(leaf, a, weights.narrow(0, start, count));
    EXPECT_THAT(mine.to_vector<double>(),
                Pointwise(NearWithin(1e-9), first.narrow(0, start, count).to_vector<double>()));
    sum(mine * mine).backward();
    EXPECT_THAT(
        leaf.grad().to_vector<double>(),
        Pointwise(NearWithin(1e-7), whole.grad().narrow(0, start, count).to_vector<double>()));
  });
}

// Case 4 of the public reports.
TEST(SyncBatchNorm, ConversionKeepsWhatAModuleIs) {
  with_ranks(2, [](const Group& group) {
    auto inner = std::make_shared<Sequential>(std::make_shared<BatchNorm2d>(3));
    auto net = std::make_shared<Sequential>(std::make_shared<BatchNorm1d>(2), inner);
    auto frozen = std::dynamic_pointer_cast<BatchNorm2d>(inner->named_modules().back().second);
    ASSERT_NE(frozen, nullptr);
    frozen->weight.set_requires_grad(false);
    frozen->eval();
    const auto before = net->named_parameters();
    convert_sync_batchnorm(net, group);
    const auto after = net->named_parameters();
    ASSERT_EQ(before.size(), after.size());
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(before[i].first, after[i].first);
      EXPECT_TRUE(before[i].second.is_same(after[i].second));
    }
    EXPECT_FALSE(frozen->weight.requires_grad());
    EXPECT_FALSE(frozen->is_training());
    EXPECT_NE(frozen->group(), nullptr);
    // In eval mode nothing is collective: one rank alone may call it.
    if (group->rank() == 0) (*frozen)(Tensor::ones({1, 3, 2, 2}));
  });
}

TEST(SyncBatchNorm, RefusesOneValuePerChannelOverTheWholeGroupOnly) {
  with_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(2, group);
    norm(Tensor::from<float>({1, 2}, {1, 2}));  // two values over the group
    const int64_t rows = group->rank() == 0 ? 1 : 0;
    EXPECT_THAT(
        [&] {
          norm(Tensor::ones({rows, 2}));
        },
        ThrowsMessage<Error>(HasSubstr("more than one value per channel")));
  });
}

// Case 7 of the public reports.
TEST(SyncBatchNorm, TwoForwardsAndOneBackwardEqualTheUnwrappedGradients) {
  const auto build = [] {
    manual_seed(4);
    return std::make_shared<Sequential>(std::make_shared<Linear>(3, 4),
                                        std::make_shared<BatchNorm1d>(4),
                                        std::make_shared<Linear>(4, 1));
  };
  manual_seed(9);
  const Tensor first = randn({6, 3});
  const Tensor second = randn({6, 3});
  auto alone = build();
  (sum((*alone)(first)) + sum(exp((*alone)(second)))).backward();
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : alone->parameters()) gradients.push_back(parameter.grad());
  const auto expected = values_of(gradients);
  with_ranks(2, [&](const Group& group) {
    auto net = build();
    DataParallel model(convert_sync_batchnorm(net, group), group);
    const int64_t start = 3 * group->rank();
    const Tensor loss =
        sum(model(first.narrow(0, start, 3))) + sum(exp(model(second.narrow(0, start, 3))));
    (loss * 2.0).backward();  // the sum over both ranks, not the average
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_THAT(net->parameters()[i].grad().to_vector<float>(),
                  Pointwise(NearWithin(2e-4), expected[i]))
          << net->named_parameters()[i].first;
    }
  });
}

TEST(DataParallel, BroadcastsDifferingBuffersUnderAGraphThatNeedsThem) {
  with_ranks(2, [](const Group& group) {
    // Plain batch norm, so that running statistics differ between ranks after the first forward.
    auto norm = std::make_shared<BatchNorm1d>(2);
    DataParallel model(norm, group);
    const auto x = random_batch({4, 2}, 20 + static_cast<uint64_t>(group->rank())).to(DType::kF32);
    const Tensor one = sum(model(x) * x);
    norm->eval();
    const Tensor two = sum((*norm)(x)*x);  // saves the running statistics
    norm->train();
    const Tensor three = sum(model(x) * x);  // gets rank 0's
    (one + two + three).backward();
    EXPECT_TRUE(norm->weight.has_grad());
    const std::vector<float> mean = norm->running_mean.to_vector<float>();
    EXPECT_TRUE(std::isfinite(mean[0]));
  });
}

// Case 3 of the public reports.
TEST(BatchNorm, OfATransposedInputEqualsThatOfItsCopy) {
  const Tensor base = random_batch({3, 5, 2}, 30);
  const Tensor g = random_batch({5, 2, 3}, 31);
  const auto run = [&](const Tensor& view) {
    Tensor x = view.detach().set_requires_grad();
    const Tensor y = batch_norm(x, {});
    y.backward(g);
    return std::pair(y.to_vector<double>(), x.grad().to_vector<double>());
  };
  const Tensor view = base.permute({1, 2, 0});
  const auto of_view = run(view);
  const auto of_copy = run(view.contiguous());
  EXPECT_THAT(of_view.first, Pointwise(NearWithin(1e-13), of_copy.first));
  EXPECT_THAT(of_view.second, Pointwise(NearWithin(1e-13), of_copy.second));
}

}  // namespace
}  // namespace lockstep::nn
