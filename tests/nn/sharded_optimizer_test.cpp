#include "lockstep/nn/sharded_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../errors.h"
#include "checkpoint_files.h"
#include "checkpoint_model.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/ema.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/join.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/schedule.h"
#include "lockstep/nn/sequential.h"
#include "ranks.h"

namespace lockstep::nn {
namespace {

using ::testing::AllOf;
using testing::bytes_of;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using Group = std::shared_ptr<comm::Communicator>;

// Odd sizes, several buckets, and blocks that end inside of parameters.
constexpr int64_t kIn = 13, kMiddle = 37, kOut = 5;

std::shared_ptr<Sequential> make_net() {
  manual_seed(11);
  return std::make_shared<Sequential>(std::make_shared<Linear>(kIn, kMiddle),
                                      std::make_shared<Tanh>(),
                                      std::make_shared<Linear>(kMiddle, kOut));
}

const DataParallelOptions kSmallBuckets = {
    .reducer = {.first_bucket_bytes = 500, .bucket_bytes = 1500}};

Tensor input_of(int rank, int step) {
  Generator generator{.seed = static_cast<uint64_t>(1000 * step + rank)};
  return randn({3, kIn}, {}, &generator);
}

// Weights in one group, biases in another, with options of its own.
template <class O, class Options>
std::unique_ptr<Optimizer> two_groups(const Module& net, Options options) {
  NamedTensors weights, biases;
  for (auto& entry : net.named_parameters()) {
    (entry.second.dim() == 2 ? weights : biases).push_back(entry);
  }
  auto optimizer = std::make_unique<O>(weights, options);
  options.lr *= 0.5;
  optimizer->add_group(biases, options);
  return optimizer;
}

enum class Rule { kSGD, kAdam, kAdamW, kRMSprop, kAdagrad, kLAMB };

std::unique_ptr<Optimizer> make_optimizer(Rule rule, const Module& net) {
  switch (rule) {
    case Rule::kSGD:
      return two_groups<SGD>(
          net, SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
    case Rule::kAdam:
      return two_groups<Adam>(net, AdamOptions{.lr = 0.01, .weight_decay = 0.1});
    case Rule::kAdamW:
      return two_groups<AdamW>(net, AdamWOptions{.lr = 0.01});
    case Rule::kRMSprop:
      return two_groups<RMSprop>(net,
                                 RMSpropOptions{.lr = 0.01, .momentum = 0.5, .centered = true});
    case Rule::kAdagrad:
      return two_groups<Adagrad>(
          net, AdagradOptions{.lr = 0.1, .lr_decay = 0.1, .initial_accumulator_value = 0.3});
    default:
      return two_groups<LAMB>(net, LAMBOptions{.lr = 0.01, .weight_decay = 0.1});
  }
}

enum class Way { kPlain, kSharded, kScattered };

std::unique_ptr<Optimizer> make_optimizer(Rule rule, Way way, DataParallel& model) {
  auto optimizer = make_optimizer(rule, *model.module());
  if (way == Way::kPlain) return optimizer;
  if (way == Way::kSharded) {
    return std::make_unique<ShardedOptimizer>(std::move(optimizer), model.group());
  }
  return std::make_unique<ShardedOptimizer>(std::move(optimizer), model);
}

void train(DataParallel& model, Optimizer& optimizer, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    optimizer.zero_grad();
    mean(square(model(input_of(model.group()->rank(), step)))).backward();
    optimizer.step();
  }
}

// Everything that a run leaves behind, on one rank.
struct Result {
  std::string parameters;
  std::string state;
  int64_t state_bytes = 0;
};

std::vector<Result> run(Rule rule, Way way, int world) {
  std::vector<Result> results(static_cast<size_t>(world));
  with_ranks(world, [&](const Group& group) {
    auto net = make_net();
    DataParallel model(net, group, kSmallBuckets);
    const auto optimizer = make_optimizer(rule, way, model);
    train(model, *optimizer, 0, 4);
    optimizer->set_lr(0.003);
    train(model, *optimizer, 4, 6);
    model.check_in_lockstep();
    results[static_cast<size_t>(group->rank())] = {bytes_of(net->named_parameters()),
                                                   bytes_of(optimizer->named_state()),
                                                   optimizer->state_bytes()};
  });
  return results;
}

TEST(ShardedOptimizer, HasTheBitsOfTheOptimiserAlone) {
  for (const Rule rule :
       {Rule::kSGD, Rule::kAdam, Rule::kAdamW, Rule::kRMSprop, Rule::kAdagrad, Rule::kLAMB}) {
    for (int world = 1; world <= 5; ++world) {
      const Result plain = run(rule, Way::kPlain, world)[0];
      for (const Way way : {Way::kSharded, Way::kScattered}) {
        if (rule == Rule::kLAMB && way == Way::kScattered && world > 1) continue;
        for (const Result& result : run(rule, way, world)) {
          EXPECT_EQ(result.parameters, plain.parameters)
              << static_cast<int>(rule) << " " << world << " " << static_cast<int>(way);
          EXPECT_EQ(result.state, plain.state)
              << static_cast<int>(rule) << " " << world << " " << static_cast<int>(way);
        }
      }
    }
  }
}

TEST(ShardedOptimizer, EachRankKeepsItsShareOfTheBytes) {
  const int64_t counts = 4 * 8;  // of one step count for each parameter
  for (int world = 2; world <= 5; ++world) {
    const int64_t all = run(Rule::kAdam, Way::kPlain, world)[0].state_bytes - counts;
    EXPECT_EQ(all, 2 * 4 * (kIn * kMiddle + kMiddle + kMiddle * kOut + kOut));
    int64_t sum = 0;
    for (const Result& result : run(Rule::kAdam, Way::kSharded, world)) {
      // Two moments, a cache line more at most, and a count for each piece.
      EXPECT_LE(result.state_bytes, all / world + 2 * 64 + counts);
      EXPECT_GT(result.state_bytes, all / world - 2 * 64 * world - counts);
      sum += result.state_bytes;
    }
    EXPECT_GE(sum, all);
    for (const Result& result : run(Rule::kAdam, Way::kScattered, world)) {
      // Blocks of four buckets are rounded up to 64 elements each.
      EXPECT_LE(result.state_bytes, all / world + 2 * 4 * 4 * 64 + 2 * counts);
    }
  }
}

TEST(ShardedOptimizer, LAMBKeepsWholeParametersAndBalancesThem) {
  with_ranks(2, [](const Group& group) {
    auto net = make_net();
    DataParallel model(net, group);
    ShardedOptimizer optimizer(make_optimizer(Rule::kLAMB, *net), group);
    train(model, optimizer, 0, 1);
    const int64_t first = 2 * 4 * kIn * kMiddle;
    const int64_t rest = 2 * 4 * (kMiddle + kMiddle * kOut + kOut);
    EXPECT_EQ(optimizer.state_bytes(), group->rank() == 0 ? first + 8 : rest + 3 * 8);
  });
}

// Saved by three ranks in shards; loaded by any number, by the optimiser alone too.
TEST(ShardedOptimizer, StateLoadsAtAnotherWorldSizeAndInAnotherWay) {
  for (const Way saving : {Way::kPlain, Way::kSharded, Way::kScattered}) {
    const TemporaryDirectory dir;
    std::string parameters, state;
    with_ranks(3, [&](const Group& group) {
      auto net = make_net();
      DataParallel model(net, group, kSmallBuckets);
      const auto optimizer = make_optimizer(Rule::kAdamW, saving, model);
      train(model, *optimizer, 0, 3);
      optimizer->set_lr(0.02, 1);
      TrainingState run;
      run.add("model", model);
      run.add("optimizer", *optimizer);
      save_checkpoint(dir.path(), 3, run, {.group = group.get(), .sharded = true});
      const std::string mine = bytes_of(optimizer->named_state());
      if (group->rank() != 1) return;
      parameters = bytes_of(net->named_parameters());
      state = mine;
    });
    ASSERT_FALSE(state.empty());
    for (const int world : {1, 2, 4}) {
      std::string first;
      for (const Way loading : {Way::kPlain, Way::kSharded, Way::kScattered}) {
        with_ranks(world, [&](const Group& group) {
          auto net = make_net();
          DataParallel model(net, group, kSmallBuckets);
          const auto optimizer = make_optimizer(Rule::kAdamW, loading, model);
          TrainingState run;
          run.add("model", model);
          run.add("optimizer", *optimizer);
          load_latest(dir.path(), run, {.group = group.get()});
          EXPECT_EQ(bytes_of(net->named_parameters()), parameters);
          EXPECT_EQ(bytes_of(optimizer->named_state()), state);
          EXPECT_EQ(optimizer->lr(1), 0.02);
          // And it goes on alike, in whichever way.
          train(model, *optimizer, 3, 5);
          const std::string mine = bytes_of(net->named_parameters());
          if (group->rank() != 0) return;
          if (first.empty()) first = mine;
          EXPECT_EQ(mine, first);
        });
      }
    }
  }
}

TEST(ShardedOptimizer, TakesOverAnOptimiserThatHasMadeSteps) {
  with_ranks(3, [](const Group& group) {
    std::vector<std::string> bits;
    for (const bool shard : {false, true}) {
      auto net = make_net();
      DataParallel model(net, group, kSmallBuckets);
      auto optimizer = make_optimizer(Rule::kAdam, *net);
      train(model, *optimizer, 0, 2);
      if (shard) optimizer = std::make_unique<ShardedOptimizer>(std::move(optimizer), model);
      train(model, *optimizer, 2, 4);
      bits.push_back(bytes_of(net->named_parameters()) + bytes_of(optimizer->named_state()));
    }
    EXPECT_EQ(bits[0], bits[1]);
  });
}

TEST(ShardedOptimizer, AccumulatesUnderNoSync) {
  with_ranks(3, [](const Group& group) {
    std::vector<std::string> bits;
    for (const Way way : {Way::kPlain, Way::kScattered}) {
      auto net = make_net();
      DataParallel model(net, group, kSmallBuckets);
      const auto optimizer = make_optimizer(Rule::kAdam, way, model);
      for (int step = 0; step < 3; ++step) {
        optimizer->zero_grad();
        {
          const auto no_sync = model.no_sync();
          sum(model(input_of(group->rank(), 50 + step))).backward();
          sum(model(input_of(group->rank(), 60 + step))).backward();
        }
        sum(square(model(input_of(group->rank(), step)))).backward();
        optimizer->step();
      }
      bits.push_back(bytes_of(net->named_parameters()));
    }
    EXPECT_EQ(bits[0], bits[1]);
  });
}

TEST(ShardedOptimizer, ClipsByTheNormOfAllParts) {
  for (int world = 1; world <= 4; ++world) {
    with_ranks(world, [&](const Group& group) {
      std::vector<double> norms;
      std::vector<std::vector<std::vector<float>>> values;
      for (const Way way : {Way::kPlain, Way::kSharded, Way::kScattered}) {
        auto net = make_net();
        DataParallel model(net, group, kSmallBuckets);
        const auto optimizer = make_optimizer(Rule::kSGD, way, model);
        for (int step = 0; step < 2; ++step) {
          optimizer->zero_grad();
          (sum(square(model(input_of(group->rank(), step)))) * 10.0).backward();
          if (auto* sharded = dynamic_cast<ShardedOptimizer*>(optimizer.get())) {
            norms.push_back(sharded->clip_grad_norm(0.5));
          } else {
            norms.push_back(clip_grad_norm_(net->parameters(), 0.5));
          }
          optimizer->step();
        }
        model.check_in_lockstep();
        values.push_back(values_of(net->parameters()));
      }
      ASSERT_GT(norms[0], 0.5);
      std::vector<double> all(static_cast<size_t>(group->size()));
      for (size_t i = 0; i < norms.size(); ++i) {
        EXPECT_NEAR(norms[i], norms[i % 2], 1e-5 * norms[0]);
        group->all_gather(&norms[i], all.data(), 1, DType::kF64).wait();
        for (const double other : all) EXPECT_EQ(other, norms[i]);  // the same bits everywhere
      }
      for (const auto& other : values) {
        for (size_t i = 0; i < other.size(); ++i) {
          for (size_t j = 0; j < other[i].size(); ++j) {
            EXPECT_NEAR(other[i][j], values[0][i][j], 1e-5);
          }
        }
      }
    });
  }
}

// One rank's gradient overflows in one element, which another rank may hold.
TEST(ShardedOptimizer, OneRanksOverflowStopsTheStepOfAll) {
  for (const Way way : {Way::kPlain, Way::kSharded, Way::kScattered}) {
    for (int world = 1; world <= 4; ++world) {
      with_ranks(world, [&](const Group& group) {
        auto net = make_net();
        DataParallel model(net, group, kSmallBuckets);
        const auto optimizer = make_optimizer(Rule::kAdam, way, model);
        GradScaler scaler({.init_scale = 1024});
        for (int step = 0; step < 3; ++step) {
          const std::string before = bytes_of(net->named_parameters());
          net->zero_grad();
          Tensor loss = mean(square(model(input_of(group->rank(), step))));
          if (step == 1 && group->rank() == world - 1) {
            // Infinite for the first bias alone.
            const Tensor bias = net->named_parameters()[1].second;
            loss = loss + sum(bias.narrow(0, 0, 1)) * std::numeric_limits<double>::infinity();
          }
          scaler.scale(loss).backward();
          EXPECT_EQ(scaler.step(*optimizer), step != 1);
          scaler.update();
          EXPECT_EQ(bytes_of(net->named_parameters()) == before, step == 1);
        }
        EXPECT_EQ(scaler.scale(), 512);
        model.check_in_lockstep();
      });
    }
  }
}

TEST(ShardedOptimizer, FollowsSchedulesAndJoins) {
  with_ranks(3, [](const Group& group) {
    std::vector<std::string> bits;
    for (const Way way : {Way::kPlain, Way::kScattered}) {
      auto net = make_net();
      DataParallel model(net, group, kSmallBuckets);
      const auto optimizer = make_optimizer(Rule::kAdamW, way, model);
      StepLR schedule(*optimizer, {.step_size = 2, .gamma = 0.5});
      ExponentialMovingAverage average(*net, 0.9);
      Join join(model, {.divisor = JoinOptions::Divisor::kActive});
      int step = 0;
      const int mine = 2 + 2 * group->rank();
      while (join.next(step < mine)) {
        optimizer->zero_grad();
        sum(model(input_of(group->rank(), step++))).backward();
        optimizer->step();
        schedule.step();
        average.update();
      }
      EXPECT_EQ(step, 6);
      model.check_in_lockstep();
      bits.push_back(bytes_of(net->named_parameters()) + bytes_of(average.named_state()));
      std::string all(bits.back());
      group->broadcast(all.data(), static_cast<int64_t>(all.size()), DType::kU8, 1).wait();
      EXPECT_EQ(all, bits.back());
    }
    EXPECT_EQ(bits[0], bits[1]);
  });
}

TEST(ShardedOptimizer, LeavesAParameterWithoutAGradientAlone) {
  with_ranks(2, [](const Group& group) {
    auto net = make_net();
    auto unused = std::make_shared<Linear>(3, 50);
    auto both = std::make_shared<Sequential>(net, unused);
    DataParallel model(both, group, kSmallBuckets);
    ShardedOptimizer optimizer(
        std::make_unique<AdamW>(both->named_parameters(), AdamWOptions{.weight_decay = 0.5}),
        model);
    const std::string before = bytes_of(unused->weight);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      sum(model.call([&] { return net->forward(input_of(group->rank(), step)); })).backward();
      optimizer.step();
    }
    EXPECT_EQ(bytes_of(unused->weight), before);
    for (const auto& [name, tensor] : optimizer.named_state()) {
      EXPECT_EQ(name.find(".1."), std::string::npos) << name;
    }
    model.check_in_lockstep();
  });
}

TEST(ShardedOptimizer, RefusesMisuseByName) {
  with_ranks(2, [](const Group& group) {
    auto net = make_net();
    DataParallel model(net, group);
    const auto refused = [](const auto& call) {
      return message_of(ErrorCode::kInvalidArgument, call);
    };
    EXPECT_THAT(refused([&] { ShardedOptimizer(make_optimizer(Rule::kLAMB, *net), model); }),
                HasSubstr("needs whole parameters"));
    auto other = std::make_shared<Linear>(2, 3);
    EXPECT_THAT(
        refused([&] { ShardedOptimizer(std::make_unique<SGD>(other->named_parameters()), model); }),
        HasSubstr("does not average the gradient of 'weight'"));
    EXPECT_THAT(refused([&] { ShardedOptimizer(nullptr, group); }), HasSubstr("got null"));
    Tensor turned = Tensor::ones({3, 2}).transpose(0, 1).detach().set_requires_grad();
    EXPECT_THAT(refused([&] {
                  ShardedOptimizer(std::make_unique<SGD>(NamedTensors{{"turned", turned}}), group);
                }),
                AllOf(HasSubstr("'turned'"), HasSubstr("(2, 3)")));
    auto shorter = std::make_shared<Linear>(2, 3 + group->rank());
    EXPECT_THAT(
        message_of(
            ErrorCode::kMismatch,
            [&] { ShardedOptimizer(std::make_unique<SGD>(shorter->named_parameters()), group); }),
        HasSubstr("(4, 2)"));
  });
}

TEST(ShardedOptimizer, RefusesABackwardThatAddsToScatteredAverages) {
  with_ranks(2, [](const Group& group) {
    auto net = make_net();
    DataParallel model(net, group);
    ShardedOptimizer optimizer(make_optimizer(Rule::kSGD, *net), model);
    sum(model(input_of(group->rank(), 0))).backward();
    net->zero_grad();  // a step that is left out
    sum(model(input_of(group->rank(), 1))).backward();
    const std::string message = message_of(
        ErrorCode::kInvalidArgument, [&] { sum(model(input_of(group->rank(), 2))).backward(); });
    EXPECT_THAT(message, AllOf(HasSubstr("under no_sync()"), HasSubstr("beginning with '2.")));
  });
}

TEST(ShardedOptimizer, RefusesGradientsThatHaveAGraphWhereTheyAreScattered) {
  with_ranks(2, [](const Group& group) {
    auto net = make_net();
    DataParallel model(net, group);
    ShardedOptimizer optimizer(make_optimizer(Rule::kSGD, *net), model);
    const std::string message = message_of(ErrorCode::kInvalidArgument, [&] {
      sum(square(model(input_of(group->rank(), 0)))).backward({}, {.create_graph = true});
    });
    EXPECT_THAT(message, HasSubstr("create_graph"));
    net->zero_grad();  // gradients with a graph hold what holds them
  });
}

}  // namespace
}  // namespace lockstep::nn
