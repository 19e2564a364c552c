#include "lockstep/nn/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/comm/flight_recorder.h"
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

using testing::AllOf;
using testing::HasSubstr;
using testing::Pointwise;
using testing::SizeIs;
using testing::ThrowsMessage;

using Group = std::shared_ptr<comm::Communicator>;

MATCHER_P(NearWithin, tolerance, "") {
  const auto [got, want] = std::pair(std::get<0>(arg), std::get<1>(arg));
  return std::abs(got - want) <= tolerance * (1 + std::abs(want));
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
        EXPECT_THAT(y.to_vector<double>(), Pointwise(NearWithin(1e-12), mine(whole.y)));
        y.backward(g.narrow(0, start, split[r]));
        EXPECT_THAT(leaf.grad().to_vector<double>(),
                    Pointwise(NearWithin(1e-12), mine(whole.x_grad)));
        const Tensor weight_grad = all_reduce(a.weight.grad(), group);
        EXPECT_THAT(weight_grad.to_vector<double>(),
                    Pointwise(NearWithin(1e-12), whole.weight_grad.to_vector<double>()));
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
                Pointwise(NearWithin(1e-12), first.narrow(0, start, count).to_vector<double>()));
    sum(mine * mine).backward();
    EXPECT_THAT(
        leaf.grad().to_vector<double>(),
        Pointwise(NearWithin(1e-11), whole.grad().narrow(0, start, count).to_vector<double>()));
  });
}

// Rows [start, start + count) of the whole batch are rank r's.
std::pair<int64_t, int64_t> rows_of(const std::vector<int64_t>& split, int rank) {
  int64_t start = 0;
  for (int r = 0; r < rank; ++r) start += split[static_cast<size_t>(r)];
  return {start, split[static_cast<size_t>(rank)]};
}

// Every rank has the same inputs and the same result, so that the ranks take differences together.
// An average over ranks is the identity on such inputs, and makes of the ranks' gradients of all
// ranks' results the gradient of one.
TEST(SyncBatchNorm, GradientsEqualDifferencesToTheSecondOrderForAnySplit) {
  const std::vector<std::vector<int64_t>> splits = {{2, 3}, {5, 0}, {1, 3, 1}};
  for (const auto& split : splits) {
    for (const Shape& tail : {Shape{2}, Shape{2, 1, 2}}) {
      with_ranks(static_cast<int>(split.size()), [&](const Group& group) {
        const auto [start, count] = rows_of(split, group->rank());
        const auto statistics = make_batch_norm_group(group);
        const auto function = [&, start = start, count = count](const Tensors& inputs) {
          Tensors same;
          for (const Tensor& input : inputs) {
            same.push_back(all_reduce(input, group, comm::ReduceOp::kAvg));
          }
          BatchNormArguments a;
          a.weight = same[1];
          a.bias = same[2];
          a.group = statistics;
          const Tensor y = batch_norm(same[0].narrow(0, start, count), a);
          const auto rows = [&](int64_t n) {
            Shape shape = same[0].shape();
            shape[0] = n;
            return Tensor::zeros(shape, {DType::kF64});
          };
          const Tensors parts = {rows(start), y, rows(5 - start - count)};
          return all_reduce(cat(parts, 0), group);
        };
        Shape shape = {5};
        shape.insert(shape.end(), tail.begin(), tail.end());
        const Tensors inputs = {random_batch(shape, 40).set_requires_grad(),
                                random_batch({2}, 41).set_requires_grad(),
                                random_batch({2}, 42).set_requires_grad()};
        EXPECT_EQ(gradcheck(function, inputs, {.tolerance = 1e-5}), "");
      });
    }
  }
}

// The whole batch on one rank, and the same in parts: running statistics and outputs, batch after
// batch, then in eval mode.
TEST(SyncBatchNorm, EveryOptionEqualsBatchNormOverTheWholeBatch) {
  std::vector<BatchNormOptions> all_options;
  for (const bool affine : {true, false}) {
    for (const bool track : {true, false}) {
      for (const std::optional<double> momentum : {std::optional<double>(0.3), {}}) {
        all_options.push_back(
            {.eps = 1e-3, .momentum = momentum, .affine = affine, .track_running_stats = track});
      }
    }
  }
  const std::vector<int64_t> split = {2, 0, 1, 4};
  for (const BatchNormOptions& options : all_options) {
    const auto batch = [](uint64_t seed) { return random_batch({7, 3, 5}, seed); };
    BatchNorm alone(3, options);
    alone.to(DType::kF64);
    std::vector<std::vector<double>> outputs, buffers;
    for (uint64_t step = 0; step < 3; ++step) {
      outputs.push_back(alone(batch(step)).to_vector<double>());
    }
    for (const auto& [name, buffer] : alone.named_buffers()) {
      buffers.push_back(buffer.to(DType::kF64).to_vector<double>());
    }
    alone.eval();
    const Tensor last = batch(9);
    with_ranks(4, [&](const Group& group) {
      const auto [start, count] = rows_of(split, group->rank());
      SyncBatchNorm norm(3, group, options);
      norm.to(DType::kF64);
      for (uint64_t step = 0; step < 3; ++step) {
        const Tensor y = norm(batch(step).narrow(0, start, count));
        const auto begin = outputs[step].begin() + 15 * start;
        EXPECT_THAT(y.to_vector<double>(),
                    Pointwise(NearWithin(1e-12), std::vector<double>(begin, begin + 15 * count)));
      }
      for (size_t i = 0; i < buffers.size(); ++i) {
        EXPECT_THAT(norm.named_buffers()[i].second.to(DType::kF64).to_vector<double>(),
                    Pointwise(NearWithin(1e-12), buffers[i]));
      }
      norm.eval();
      // Not collective any more: the running statistics, or this rank's own where there are none.
      if (group->rank() != 3) return;
      BatchNorm mine(3, options);
      mine.to(DType::kF64);
      for (size_t i = 0; i < buffers.size(); ++i) {
        mine.named_buffers()[i].second.copy_(norm.named_buffers()[i].second);
      }
      mine.eval();
      EXPECT_EQ(norm(last).to_vector<double>(), mine(last).to_vector<double>());
    });
  }
}

TEST(SyncBatchNorm, ChannelsLastMemoryGivesTheSameAndKeepsItsOrder) {
  const Tensor x = random_batch({5, 3, 2, 4}, 50);
  const Tensor g = random_batch({5, 3, 2, 4}, 51);
  const Plain whole = plain(x, g);
  const std::vector<int64_t> split = {3, 2};
  with_ranks(2, [&](const Group& group) {
    const auto [start, count] = rows_of(split, group->rank());
    BatchNormArguments a;
    a.weight = weights_for(3);
    a.group = make_batch_norm_group(group);
    const Tensor mine = x.narrow(0, start, count);
    Tensor leaf = mine.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}).detach();
    leaf.set_requires_grad();
    const Tensor y = batch_norm(leaf, a);
    EXPECT_EQ(y.strides(), leaf.strides());
    y.backward(g.narrow(0, start, count));
    EXPECT_THAT(y.to_vector<double>(),
                Pointwise(NearWithin(1e-12), whole.y.narrow(0, start, count).to_vector<double>()));
    EXPECT_THAT(
        leaf.grad().to_vector<double>(),
        Pointwise(NearWithin(1e-12), whole.x_grad.narrow(0, start, count).to_vector<double>()));
  });
}

// A mean of 300 and a deviation of 1: statistics in 16 bits would have no digit of the variance.
TEST(SyncBatchNorm, SixteenBitInputsHaveStatisticsInF32) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Tensor x = (random_batch({64, 3}, 60) * 0.5 + 300.0).to(dtype);
    const Tensor g = random_batch({64, 3}, 61).to(dtype);
    // In f64 from the rounded inputs.
    const Plain exact = plain(x.to(DType::kF64), g.to(DType::kF64));
    const std::vector<int64_t> split = {41, 0, 23};
    with_ranks(3, [&](const Group& group) {
      const auto [start, count] = rows_of(split, group->rank());
      BatchNormArguments a;
      a.weight = weights_for(3).detach().to(DType::kF32).set_requires_grad();
      a.running_mean = Tensor::zeros({3});
      a.running_var = Tensor::ones({3});
      a.group = make_batch_norm_group(group);
      Tensor leaf = x.narrow(0, start, count).clone().set_requires_grad();
      const Tensor y = batch_norm(leaf, a);
      EXPECT_EQ(y.dtype(), dtype);
      const double rounding = dtype == DType::kF16 ? 1.0 / 2048 : 1.0 / 256;
      EXPECT_THAT(
          y.to(DType::kF64).to_vector<double>(),
          Pointwise(NearWithin(rounding), exact.y.narrow(0, start, count).to_vector<double>()));
      const auto f64 = [](const Tensor& t) { return t.to(DType::kF64).to_vector<double>(); };
      // f32's rounding of a mean of 300 is 1.5e-5.
      EXPECT_THAT(f64(a.running_mean), Pointwise(NearWithin(1e-6), f64(exact.running_mean)));
      EXPECT_THAT(f64(a.running_var), Pointwise(NearWithin(1e-5), f64(exact.running_var)));
      y.backward(g.narrow(0, start, count));
      EXPECT_EQ(leaf.grad().dtype(), dtype);
      EXPECT_THAT(f64(leaf.grad()),
                  Pointwise(NearWithin(2 * rounding), f64(exact.x_grad.narrow(0, start, count))));
    });
  }
}

TEST(SyncBatchNorm, SubgroupsKeepToThemselves) {
  const std::vector<int64_t> split = {1, 3, 2, 2, 1};
  const Tensor x = random_batch({9, 3}, 70);
  with_ranks(5, [&](const Group& world) {
    const std::shared_ptr<comm::Communicator> group = world->split(world->rank() % 2);
    Tensors together;
    for (int r = world->rank() % 2; r < 5; r += 2) {
      const auto [start, count] = rows_of(split, r);
      together.push_back(x.narrow(0, start, count));
    }
    const Tensor whole = plain(cat(together, 0), cat(together, 0)).y;
    int64_t before = 0;
    for (int r = world->rank() % 2; r < world->rank(); r += 2) {
      before += split[static_cast<size_t>(r)];
    }
    BatchNormArguments a;
    a.weight = weights_for(3);
    a.group = make_batch_norm_group(group);
    const auto [start, count] = rows_of(split, world->rank());
    EXPECT_THAT(batch_norm(x.narrow(0, start, count), a).to_vector<double>(),
                Pointwise(NearWithin(1e-12), whole.narrow(0, before, count).to_vector<double>()));
  });
}

// The requests that this rank has made of all its groups so far, in order, as the flight recorder
// knows them.
std::vector<std::string> requests(const Group& world) {
  std::vector<int> ranks(static_cast<size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const comm::FlightRecorder own({"of this test", "none", world->rank(), ranks});
  const std::string path = own.dump("");
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> out;
  for (const comm::FlightGroup& group : comm::read_flight(text, path).groups) {
    for (const comm::FlightEntry& entry : group.entries) out.push_back(entry.request);
  }
  return out;
}

TEST(SyncBatchNorm, TakesOneSmallCollectiveEachWay) {
  const std::string folder = testing::TempDir() + "sync_batch_norm_" + std::to_string(::getpid());
  ::setenv("LOCKSTEP_RECORD", folder.c_str(), 1);
  with_ranks(3, [](const Group& group) {
    SyncBatchNorm norm(5, group);
    Tensor x = random_batch({2 + group->rank(), 5, 7}, 80).to(DType::kF32).set_requires_grad();
    const size_t before = requests(group).size();
    const Tensor y = norm.forward(x);
    std::vector<std::string> asked = requests(group);
    ASSERT_THAT(asked, SizeIs(before + 1));
    // The count and, per channel, mean and squared deviation.
    EXPECT_THAT(asked.back(), AllOf(HasSubstr("all_gather"), HasSubstr("11")));
    sum(y * y).backward();
    asked = requests(group);
    ASSERT_THAT(asked, SizeIs(before + 2));
    EXPECT_THAT(asked.back(), AllOf(HasSubstr("all_reduce"), HasSubstr("10")));
    norm.eval();
    sum(norm.forward(x)).backward();
    EXPECT_THAT(requests(group), SizeIs(before + 2));
  });
  ::unsetenv("LOCKSTEP_RECORD");
  std::filesystem::remove_all(folder);
}

TEST(SyncBatchNorm, ConversionKeepsGroupsThatArePresentAndGoesBack) {
  with_ranks(3, [](const Group& world) {
    const std::shared_ptr<comm::Communicator> alone = world->split(world->rank());
    auto own = std::make_shared<SyncBatchNorm>(2, alone);
    auto deep = std::make_shared<BatchNorm3d>(2);
    auto net = std::make_shared<Sequential>(own, std::make_shared<Sequential>(deep));
    const auto kept = own->group();
    convert_sync_batchnorm(net, world);
    EXPECT_EQ(own->group(), kept);
    ASSERT_NE(deep->group(), nullptr);
    // `own` is in a group of one: nothing of it is collective.
    if (world->rank() == 1) {
      (*own)(Tensor::from<float>({1, 2, 3, 4}, {2, 2}));
      EXPECT_FLOAT_EQ(own->running_mean.to_vector<float>()[1], 0.3f);
    }
    const auto before = net->named_parameters();
    EXPECT_EQ(revert_sync_batchnorm(net), net);
    EXPECT_EQ(own->group(), nullptr);
    EXPECT_EQ(deep->group(), nullptr);
    EXPECT_TRUE(net->named_parameters()[2].second.is_same(before[2].second));
    if (world->rank() == 2) (*deep)(random_batch({2, 2, 1, 2, 2}, 1).to(DType::kF32));
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
