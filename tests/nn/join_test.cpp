#include "lockstep/nn/join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../errors.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/collectives.h"
#include "lockstep/nn/comm_hooks.h"
#include "lockstep/nn/conv.h"
#include "lockstep/nn/data/data_loader.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/flatten.h"
#include "lockstep/nn/layer_norm.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/pooling.h"
#include "lockstep/nn/sequential.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "ranks.h"

namespace lockstep::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using Divisor = JoinOptions::Divisor;
using Group = std::shared_ptr<comm::Communicator>;

MATCHER_P(NearWithin, tolerance, "") {
  const auto [got, want] = std::pair(std::get<0>(arg), std::get<1>(arg));
  return std::abs(got - want) <= tolerance * (1 + std::abs(want));
}

constexpr int64_t kWidth = 3;

// Step `step` of rank `rank`: as many samples as both say, from 1 to 4.
Batch batch_of(int rank, int64_t step) {
  Generator generator{.seed = static_cast<uint64_t>(100 * rank + step)};
  const int64_t samples = 1 + (2 * rank + step) % 4;
  return {randn({samples, kWidth}, {DType::kF64}, &generator),
          randn({samples, 1}, {DType::kF64}, &generator)};
}

// The batches of one rank.
struct Source {
  int rank;
  int64_t steps;
  int64_t done = 0;
  std::optional<Batch> next() {
    if (done == steps) return std::nullopt;
    return batch_of(rank, done++);
  }
};

std::shared_ptr<Sequential> make_net(const std::shared_ptr<Module>& middle = nullptr) {
  manual_seed(5);
  auto net = std::make_shared<Sequential>(std::make_shared<Linear>(kWidth, 4),
                                          middle ? middle : std::make_shared<Tanh>(),
                                          std::make_shared<Linear>(4, 1));
  net->to(DType::kF64);
  return net;
}

Tensor loss_of(const Tensor& y, const Batch& batch) { return mean(square(y - batch.target)); }

std::vector<std::vector<double>> f64_values(const Module& net) {
  std::vector<std::vector<double>> values;
  for (const auto& [name, tensor] : net.named_parameters()) {
    values.push_back(tensor.to_vector<double>());
  }
  for (const auto& [name, tensor] : net.named_buffers()) {
    values.push_back(tensor.to(DType::kF64).to_vector<double>());
  }
  return values;
}

void expect_near(const std::vector<std::vector<double>>& got,
                 const std::vector<std::vector<double>>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_THAT(got[i], Pointwise(NearWithin(1e-12), want[i])) << "tensor " << i;
  }
}

const std::vector<std::vector<int64_t>> kSteps = {{4}, {5, 2}, {2, 5}, {3, 0, 5}, {0, 1, 1, 4}};

// One process that adds up what each rank with a batch would give.
TEST(Join, EveryBatchCountsOnceByEitherDivisor) {
  for (const Divisor divisor : {Divisor::kWorldSize, Divisor::kActive}) {
    for (const std::vector<int64_t>& steps : kSteps) {
      const auto world = static_cast<int>(steps.size());
      auto alone = make_net();
      SGD sgd(alone->named_parameters(), {.lr = 0.1, .momentum = 0.9});
      for (int64_t step = 0; step < 5; ++step) {
        int active = 0;
        sgd.zero_grad();
        for (int r = 0; r < world; ++r) active += step < steps[static_cast<size_t>(r)] ? 1 : 0;
        if (active == 0) break;
        for (int r = 0; r < world; ++r) {
          if (step >= steps[static_cast<size_t>(r)]) continue;
          const Batch batch = batch_of(r, step);
          const Tensor loss = loss_of((*alone)(batch.input), batch);
          (loss / static_cast<double>(divisor == Divisor::kActive ? active : world)).backward();
        }
        sgd.step();
      }
      const auto want = f64_values(*alone);
      std::vector<std::vector<std::vector<double>>> got(steps.size());
      with_ranks(world, [&](const Group& group) {
        auto net = make_net();
        DataParallel model(net, group, {.reducer = {.first_bucket_bytes = 40}});
        SGD optimizer(net->named_parameters(), {.lr = 0.1, .momentum = 0.9});
        Source source{group->rank(), steps[static_cast<size_t>(group->rank())]};
        Join join(model, {.divisor = divisor});
        Batch batch;
        while (join.next(source, batch)) {
          EXPECT_EQ(join.is_shadow(), batch.size() == 0);
          optimizer.zero_grad();
          loss_of(model(batch.input), batch).backward();
          optimizer.step();
        }
        EXPECT_EQ(join.steps(), *std::max_element(steps.begin(), steps.end()));
        model.check_in_lockstep();
        got[static_cast<size_t>(group->rank())] = f64_values(*net);
      });
      for (const auto& values : got) {
        expect_near(values, want);
        EXPECT_EQ(values, got[0]);
      }
    }
  }
}

// Training on all samples of a step at once, with plain batch norm.
TEST(Join, SyncBatchNormAndTheMeanOverSamplesEqualOneProcessOnTheWholeBatch) {
  for (const Divisor divisor : {Divisor::kWorldSize, Divisor::kActive}) {
    for (const BufferMode buffers :
         {BufferMode::kBroadcast, BufferMode::kAverage, BufferMode::kLeave}) {
      for (const std::vector<int64_t>& steps : kSteps) {
        auto alone = make_net(std::make_shared<BatchNorm1d>(4));
        SGD sgd(alone->named_parameters(), {.lr = 0.1, .momentum = 0.9});
        for (int64_t step = 0; step < 5; ++step) {
          Tensors inputs, targets;
          for (size_t r = 0; r < steps.size(); ++r) {
            if (step >= steps[r]) continue;
            // Rank 3 alone has a batch of one sample, which batch norm refuses.
            const Batch batch = batch_of(static_cast<int>(r), step);
            inputs.push_back(batch.input);
            targets.push_back(batch.target);
          }
          if (inputs.empty()) break;
          const Batch whole = {cat(inputs, 0), cat(targets, 0)};
          if (whole.size() == 1) continue;
          sgd.zero_grad();
          loss_of((*alone)(whole.input), whole).backward();
          sgd.step();
        }
        const auto want = f64_values(*alone);
        with_ranks(static_cast<int>(steps.size()), [&](const Group& group) {
          auto net = make_net(std::make_shared<BatchNorm1d>(4));
          convert_sync_batchnorm(net, group);
          DataParallel model(net, group, {.buffers = buffers});
          SGD optimizer(net->named_parameters(), {.lr = 0.1, .momentum = 0.9});
          Source source{group->rank(), steps[static_cast<size_t>(group->rank())]};
          Join join(model, {.divisor = divisor});
          Batch batch;
          while (join.next(source, batch)) {
            int64_t samples = batch.size();
            group->all_reduce(&samples, &samples, 1, DType::kI64, comm::ReduceOp::kSum).wait();
            if (samples == 1) continue;
            optimizer.zero_grad();
            const Tensor loss = join.mean_over_samples(loss_of(model(batch.input), batch));
            EXPECT_TRUE(std::isfinite(loss.item()));
            loss.backward();
            optimizer.step();
          }
          expect_near(f64_values(*net), want);
        });
      }
    }
  }
}

// Plain batch norm, so that ranks' statistics differ. Rank 0, from which they come elsewhere, has
// seen only one batch.
TEST(Join, BuffersComeFromARankThatHasABatch) {
  // More than one sample.
  const auto twice = [](const Tensor& x) { return cat(Tensors{x, x + 1.0}, 0); };
  std::vector<std::vector<double>> means(3);
  with_ranks(3, [&](const Group& group) {
    auto norm = std::make_shared<BatchNorm1d>(kWidth);
    norm->to(DType::kF64);
    DataParallel model(norm, group);
    Source source{group->rank(), std::vector<int64_t>{1, 4, 2}[static_cast<size_t>(group->rank())]};
    Join join(model);
    Batch batch;
    while (join.next(source, batch)) sum(model(twice(batch.input))).backward();
    means[static_cast<size_t>(group->rank())] = norm->running_mean.to_vector<double>();
    EXPECT_EQ(norm->num_batches_tracked.item_i64(), 4);
  });
  // Rank 0's count in the first step alone, and are replaced before the second.
  BatchNorm1d want(kWidth);
  want.to(DType::kF64);
  for (int64_t step = 0; step < 4; ++step) want(twice(batch_of(1, step).input));
  for (const auto& mean : means) {
    EXPECT_THAT(mean, Pointwise(NearWithin(1e-12), want.running_mean.to_vector<double>()));
  }
}

TEST(Join, WhatARankWithoutABatchComputesCountsAsNothing) {
  with_ranks(2, [](const Group& group) {
    auto net = make_net();
    DataParallel model(net, group);
    Source source{group->rank(), group->rank() == 0 ? 1 : 2};
    Join join(model);
    Batch batch;
    std::vector<double> want;
    while (join.next(source, batch)) {
      net->zero_grad();
      Tensor loss = sum(model(batch.input));
      // A loss that has a gradient without samples, and one that is not finite.
      if (join.is_shadow()) {
        for (const Tensor& p : net->parameters()) loss = loss + sum(p * 7.0) + sum(log(p * 0.0));
      }
      loss.backward();
      if (join.steps() != 2) continue;
      auto same = make_net();
      sum((*same)(batch_of(1, 1).input) / 2.0).backward();
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        EXPECT_THAT(net->parameters()[i].grad().to_vector<double>(),
                    Pointwise(NearWithin(1e-12), same->parameters()[i].grad().to_vector<double>()));
      }
    }
  });
}

// Rank 0 runs out between the two backwards of its accumulation.
TEST(Join, KeepsWhatWasAccumulatedBeforeARankRanOut) {
  with_ranks(2, [](const Group& group) {
    auto net = make_net();
    DataParallel model(net, group);
    Source source{group->rank(), group->rank() == 0 ? 1 : 2};
    Join join(model);
    Batch batch;
    while (join.next(source, batch)) {
      const bool accumulates = join.steps() == 1;
      std::optional<DataParallel::NoSync> no_sync;
      if (accumulates) no_sync.emplace(model.reducer());
      sum(model(batch.input)).backward();
    }
    auto same = make_net();
    for (const auto& [rank, step] : {std::pair{0, 0}, {1, 0}, {1, 1}}) {
      sum((*same)(batch_of(rank, step).input) / 2.0).backward();
    }
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_THAT(net->parameters()[i].grad().to_vector<double>(),
                  Pointwise(NearWithin(1e-12), same->parameters()[i].grad().to_vector<double>()));
    }
  });
}

TEST(Join, SecondOrderGradientsAreAveragedByEitherDivisor) {
  for (const Divisor divisor : {Divisor::kWorldSize, Divisor::kActive}) {
    const auto penalty = [](const NamedTensors& parameters) {
      Tensor total = Tensor::zeros({}, {DType::kF64});
      for (const auto& [name, p] : parameters) total = total + sum(square(p.grad()));
      return total;
    };
    auto same = make_net();
    const Batch only = batch_of(1, 0);
    (loss_of((*same)(only.input), only) / (divisor == Divisor::kActive ? 1.0 : 2.0))
        .backward({}, {.create_graph = true});
    const Tensor penalised = penalty(same->named_parameters());
    same->zero_grad();
    penalised.backward();
    with_ranks(2, [&](const Group& group) {
      auto net = make_net();
      DataParallel model(net, group);
      Source source{group->rank(), group->rank()};
      Join join(model, {.divisor = divisor});
      Batch batch;
      while (join.next(source, batch)) {
        loss_of(model(batch.input), batch).backward({}, {.create_graph = true});
        const Tensor mine = penalty(net->named_parameters());
        net->zero_grad();
        mine.backward();
      }
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        if (!same->parameters()[i].has_grad()) continue;
        EXPECT_THAT(net->parameters()[i].grad().to_vector<double>(),
                    Pointwise(NearWithin(1e-11), same->parameters()[i].grad().to_vector<double>()))
            << i;
      }
    });
  }
}

TEST(Join, WorksThroughHooks) {
  with_ranks(3, [](const Group& group) {
    auto net = make_net();
    DataParallel model(net, group, {.reducer = {.first_bucket_bytes = 40}});
    model.set_comm_hook(std::make_shared<PowerSgdHook>());
    SGD optimizer(net->named_parameters(), {.lr = 0.01});
    Source source{group->rank(), 2 * group->rank()};
    Join join(model);
    Batch batch;
    while (join.next(source, batch)) {
      optimizer.zero_grad();
      loss_of(model(batch.input), batch).backward();
      optimizer.step();
    }
    EXPECT_EQ(join.steps(), 4);
    model.check_in_lockstep();
  });
}

TEST(Join, SeveralModelsJoinTogether) {
  with_ranks(2, [](const Group& group) {
    auto first = make_net();
    auto second = make_net(std::make_shared<BatchNorm1d>(4));
    convert_sync_batchnorm(second, group);
    DataParallel generator(first, group), critic(second, group);
    Adam first_step(first->named_parameters()), second_step(second->named_parameters());
    Source source{group->rank(), group->rank() == 0 ? 3 : 1};
    Join join({&generator, &critic});
    Batch batch;
    while (join.next(source, batch)) {
      if (join.steps() == 3) continue;  // one sample, which batch norm refuses
      for (auto [model, optimizer] :
           {std::pair{&generator, &first_step}, {&critic, &second_step}}) {
        optimizer->zero_grad();
        loss_of((*model)(batch.input), batch).backward();
        optimizer->step();
      }
    }
    generator.check_in_lockstep();
    critic.check_in_lockstep();
  });
}

// Layers see batches of no samples.
TEST(Join, EveryLayerTakesZeroSamples) {
  const auto build = [](int which) -> std::shared_ptr<Module> {
    manual_seed(3);
    switch (which) {
      case 0:
        return std::make_shared<Sequential>(
            std::make_shared<Conv2d>(2, 3, 3, Conv2dModuleOptions{.padding = 1}),
            std::make_shared<BatchNorm2d>(3), std::make_shared<ReLU>(),
            std::make_shared<MaxPool2d>(2), std::make_shared<Dropout>(0.1),
            std::make_shared<Flatten>(), std::make_shared<Linear>(12, 5));
      default:
        return std::make_shared<Sequential>(
            std::make_shared<AvgPool2d>(2), std::make_shared<Flatten>(),
            std::make_shared<LayerNorm>(Shape{8}), std::make_shared<Linear>(8, 5));
    }
  };
  for (int which = 0; which < 2; ++which) {
    with_ranks(2, [&](const Group& group) {
      auto net = build(which);
      DataParallel model(net, group);
      SGD optimizer(net->named_parameters(), {.lr = 0.1});
      int64_t left = 1 + group->rank();
      Join join(model);
      struct Images {
        int64_t* left;
        std::optional<Batch> next() {
          if (--*left < 0) return std::nullopt;
          return Batch{randn({3, 2, 4, 4}), Tensor::from<int64_t>({0, 4, 2}, {3})};
        }
      } images{&left};
      Batch batch;
      while (join.next(images, batch)) {
        optimizer.zero_grad();
        join.mean_over_samples(cross_entropy(model(batch.input), batch.target)).backward();
        for (const Tensor& p : net->parameters()) {
          for (const float g : p.grad().to_vector<float>()) ASSERT_TRUE(std::isfinite(g));
        }
        optimizer.step();
      }
      EXPECT_EQ(join.steps(), 2);
      model.check_in_lockstep();
    });
  }
}

TEST(Join, WorksWithADataLoader) {
  with_ranks(2, [](const Group& group) {
    manual_seed(1);
    const int64_t samples = group->rank() == 0 ? 7 : 3;
    const auto data = std::make_shared<TensorDataset>(randn({samples, kWidth}, {DType::kF64}),
                                                      randn({samples, 1}, {DType::kF64}));
    DataLoader loader(data, std::make_shared<SequentialSampler>(samples), {.batch_size = 2});
    auto net = make_net();
    DataParallel model(net, group);
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      loader.set_epoch(epoch);
      Join join(model);
      Batch batch;
      int64_t seen = 0;
      while (join.next(loader, batch)) {
        seen += batch.size();
        loss_of(model(batch.input), batch).backward();
      }
      EXPECT_EQ(seen, samples);
      EXPECT_EQ(join.steps(), 4);
    }
  });
}

TEST(Join, ThrowsOnEveryRankWhereEarlyEndsAreForbidden) {
  with_ranks(3, [](const Group& group) {
    auto net = make_net();
    DataParallel model(net, group);
    {
      Source source{group->rank(), group->rank() == 1 ? 4 : 2};
      Join join(model, {.throw_on_early_end = true});
      Batch batch;
      const std::string message = message_of(ErrorCode::kMismatch, [&] {
        while (join.next(source, batch)) loss_of(model(batch.input), batch).backward();
      });
      EXPECT_THAT(message,
                  AllOf(HasSubstr("after 2 steps: ranks 0, 2"), HasSubstr("more: rank 1")));
    }
    // The group goes on.
    Source source{group->rank(), 2};
    Join join(model, {.throw_on_early_end = true});
    Batch batch;
    while (join.next(source, batch)) loss_of(model(batch.input), batch).backward();
    EXPECT_EQ(join.steps(), 2);
  });
}

TEST(Join, NamesTheRanksWhoseOptionsDiffer) {
  with_ranks(3, [](const Group& group) {
    auto net = make_net();
    DataParallel model(net, group);
    const bool other = group->rank() == 2;
    Join join(model, {.divisor = other ? Divisor::kActive : Divisor::kWorldSize});
    const std::string message = message_of(ErrorCode::kMismatch, [&] { join.next(true); });
    EXPECT_THAT(message, AllOf(HasSubstr("rank 0 joined with divisor kWorldSize"),
                               HasSubstr("rank 2 with divisor kActive")));
  });
}

TEST(Join, RefusesMisuseByName) {
  with_ranks(2, [](const Group& group) {
    auto net = make_net();
    DataParallel model(net, group);
    auto stranger = make_net();
    DataParallel other(stranger, group);
    const Group alone = group->split(group->rank());
    DataParallel local(make_net(), alone);
    {
      Join join(model);
      EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { other(batch_of(0, 0).input); }),
                  HasSubstr("Sequential runs a forward in training mode while a Join is open"));
      {
        const NoGrad no_grad;
        other(batch_of(0, 0).input);  // to look at is allowed
      }
      local(batch_of(0, 0).input);  // a group of one averages nothing
      EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { Join second(other); }),
                  HasSubstr("another Join is open"));
      EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { join.next(true, -1); }),
                  HasSubstr("got -1"));
      EXPECT_FALSE(join.next(false));
      EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { join.next(true); }),
                  HasSubstr("all ranks' batches have ended"));
    }
    other(batch_of(0, 0).input);
    EXPECT_THAT(message_of(ErrorCode::kInvalidArgument,
                           [&] {
                             Join join({&model, &local});
                           }),
                HasSubstr("want models of one group"));
    EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [] { Join join({}); }),
                HasSubstr("got none"));
    sum(model(batch_of(0, 0).input)).backward();
  });
}

// Case 12 of the public reports: y = w x with a mean loss.
TEST(MeanOverSamples, WeighsRanksByTheirSamples) {
  with_ranks(3, [](const Group& group) {
    auto net = std::make_shared<Linear>(1, 1, false);
    DataParallel model(net, group);
    const std::vector<std::vector<float>> batches = {{6}, {0, 0, 2}, {}};
    const auto& mine = batches[static_cast<size_t>(group->rank())];
    const auto n = static_cast<int64_t>(mine.size());
    const Tensor x = Tensor::from<float>(mine, {n, 1});
    const Tensor loss = mean_over_samples(mean(model(x)), n, *group);
    loss.backward();
    EXPECT_FLOAT_EQ(static_cast<float>(net->weight.grad().item()), 2.0f);
    EXPECT_TRUE(std::isfinite(loss.item()));
    // The values' average is the mean over the samples too.
    const double y = net->weight.item() * 8 / 4;
    EXPECT_NEAR(all_reduce(loss.detach(), group, comm::ReduceOp::kAvg).item(), y, 1e-6);
    EXPECT_THROW(mean_over_samples(loss, -1, *group), Error);
  });
}

}  // namespace
}  // namespace lockstep::nn
