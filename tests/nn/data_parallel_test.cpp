#include "lockstep/nn/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/sequential.h"
#include "ranks.h"

namespace lockstep::nn {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pointwise;
using testing::ThrowsMessage;

using Group = std::shared_ptr<comm::Communicator>;

MATCHER_P(NearWithin, tolerance, "") {
  return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance;
}

// One parameter p of the given values; forward multiplies.
class Scale : public Module {
 public:
  explicit Scale(std::vector<float> values, std::string name = "p") {
    const auto n = static_cast<int64_t>(values.size());
    p = Tensor::from(values, {n});
    register_parameter(std::move(name), p);
  }
  Tensor forward(const Tensor& x) override { return x * p; }
  std::string type_name() const override { return "Scale"; }
  Tensor p;
};

// Two branches, of which forward takes the one that it is told.
class Branches : public Module {
 public:
  Branches() {
    left = register_module("left", std::make_shared<Scale>(std::vector<float>{1}));
    right = register_module("right", std::make_shared<Scale>(std::vector<float>{1}));
  }
  Tensor forward(const Tensor& x) override {
    return take_left ? left->forward(x) : right->forward(x);
  }
  std::string type_name() const override { return "Branches"; }
  std::shared_ptr<Scale> left;
  std::shared_ptr<Scale> right;
  bool take_left = true;
};

TEST(DataParallel, AveragesGradientsOverTheRanks) {
  for (const int ranks : {1, 2, 3, 5}) {
    with_ranks(ranks, [&](const Group& group) {
      auto net = std::make_shared<Scale>(std::vector<float>{1, 2, 3});
      DataParallel model(net, group);
      const auto r = static_cast<float>(group->rank());
      sum(model(Tensor::from<float>({r, 2 * r, r + 1}, {3}))).backward();
      const float mean = static_cast<float>(ranks - 1) / 2;
      EXPECT_THAT(net->p.grad().to_vector<float>(),
                  Pointwise(NearWithin(1e-6), std::vector<float>{mean, 2 * mean, mean + 1}));
    });
  }
}

// A hook of the program's own that runs before the reducer's.
TEST(DataParallel, NamesAParameterWhoseGradientAHookTookAway) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Scale>(std::vector<float>{1, 2, 3});
    net->p.register_post_accumulate_hook([](const Tensor& p) { Tensor(p).clear_grad(); });
    DataParallel model(net, group);
    const Tensor loss = sum(model(Tensor::from<float>({1, 2, 3}, {3})));
    EXPECT_THAT([&] { loss.backward(); },
                ThrowsMessage<Error>(AllOf(HasSubstr("'p'"), HasSubstr("got none"))));
  });
}

TEST(DataParallel, AddsNoPrefixToNames) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Sequential>(std::make_shared<Linear>(3, 2));
    const DataParallel model(net, group);
    EXPECT_EQ(model.named_parameters()[0].first, "0.weight");
    EXPECT_EQ(model.named_parameters().size(), 2u);
  });
}

TEST(DataParallel, StartsFromRankZerosValues) {
  with_ranks(3, [](const Group& group) {
    manual_seed(static_cast<uint64_t>(group->rank()));
    auto net = std::make_shared<Linear>(5, 3);
    const DataParallel model(net, group);
    model.check_in_lockstep();
    manual_seed(0);
    EXPECT_EQ(net->weight.to_vector<float>(), Linear(5, 3).weight.to_vector<float>());
  });
}

// Case 11 of the public reports, the one that started this project.
TEST(DataParallel, AveragesASecondBackwardWhoseGraphLeadsThroughUpdatedWeights) {
  for (const int ranks : {1, 2, 4}) {
    with_ranks(ranks, [&](const Group& group) {
      auto net = std::make_shared<Linear>(4, 1, false);
      {
        NoGrad no_grad;
        net->weight.copy_(Tensor::from<float>({-0.4710f, -0.0981f, -0.1402f, -0.1334f}, {1, 4}));
      }
      DataParallel model(net, group);
      const int64_t rows = 8 / ranks;
      Tensor x = Tensor::empty({rows, 4});
      for (int64_t i = 0; i < rows; ++i) {
        const auto row = static_cast<float>(i * ranks + group->rank());
        const float base[] = {0.01f, 10, 0.4f, 33};
        for (int64_t j = 0; j < 4; ++j) x.data<float>()[i * 4 + j] = base[j] + row;
      }
      const auto average = [&](const Tensor& loss) {
        auto value = loss.item();
        group->all_reduce(&value, &value, 1, DType::kF64, comm::ReduceOp::kAvg).wait();
        return value;
      };
      const Tensor first = mean(model(x));
      first.backward();
      EXPECT_THAT(net->weight.grad().to_vector<float>(),
                  Pointwise(NearWithin(1e-4), std::vector<double>{3.51, 13.5, 3.9, 36.5}));
      const Tensor updated = net->weight - net->weight.grad().clone();
      const Tensor second = mean(linear(x, updated));
      second.backward();
      EXPECT_THAT(net->weight.grad().to_vector<float>(),
                  Pointwise(NearWithin(1e-4), std::vector<double>{7.02, 27, 7.8, 73}));
      EXPECT_NEAR(average(first), -8.39344, 1e-5);
      EXPECT_NEAR(average(second), -1550.4235, 1e-3);
    });
  }
}

// Case 5 of the public reports.
TEST(DataParallel, LeavesAParameterThatNobodyUsedAlone) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Branches>();
    DataParallel model(net, group);
    SGD optimizer(net->named_parameters(), {.lr = 1, .weight_decay = 0.1});
    sum(model(Tensor::from<float>({0}, {1}))).backward();
    EXPECT_TRUE(net->left->p.has_grad());
    EXPECT_FALSE(net->right->p.has_grad());
    optimizer.step();
    EXPECT_EQ(net->right->p.item(), 1);
    EXPECT_FLOAT_EQ(static_cast<float>(net->left->p.item()), 0.9f);
  });
}

TEST(DataParallel, AveragesWithZerosWhereOnlySomeRanksUsedAParameter) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Branches>();
    DataParallel model(net, group);
    net->take_left = group->rank() == 0;
    sum(model(Tensor::from<float>({4}, {1}))).backward();
    EXPECT_EQ(net->left->p.grad().item(), 2);
    EXPECT_EQ(net->right->p.grad().item(), 2);
  });
}

// Case 9 of the public reports.
TEST(DataParallel, NeedsNoFlagForABranchThatIsNeverTaken) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Branches>();
    DataParallel model(net, group);
    SGD optimizer(net->named_parameters(), {.lr = 0.1});
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      sum(model(Tensor::from<float>({1}, {1}))).backward();
      optimizer.step();
      EXPECT_FALSE(net->right->p.has_grad());
    }
    EXPECT_NEAR(net->left->p.item(), 0.4, 1e-6);
  });
}

TEST(DataParallel, RunsABackwardThatReachesNoParameterOnSomeRanks) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Scale>(std::vector<float>{3});
    DataParallel model(net, group);
    Tensor x = Tensor::from<float>({2}, {1});
    x.set_requires_grad();
    const Tensor y = model(x);
    // On rank 1 the gradient of the output is there, but a constant replaces the module's result.
    (group->rank() == 0 ? sum(y) : sum(y * 0.0)).backward();
    EXPECT_EQ(net->p.grad().item(), 1);
  });
}

TEST(DataParallel, KeepsAGradientThatNoRankTouchedBitByBit) {
  with_ranks(3, [](const Group& group) {
    auto net = std::make_shared<Branches>();
    DataParallel model(net, group);
    sum(model(Tensor::from<float>({0.1f}, {1}))).backward();
    const double before = net->left->p.grad().item();
    net->take_left = false;
    for (int i = 0; i < 5; ++i) sum(model(Tensor::from<float>({0.3f}, {1}))).backward();
    EXPECT_EQ(net->left->p.grad().item(), before);
  });
}

// Case 6 of the public reports: what counts is where backward runs.
TEST(DataParallel, NoSyncHoldsForBackwardsThatRunInsideIt) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Scale>(std::vector<float>{1});
    DataParallel model(net, group);
    const Tensor x = Tensor::from<float>({group->rank() == 0 ? 1.0f : 3.0f}, {1});
    Tensor inside;
    {
      const auto no_sync = model.no_sync();
      inside = sum(model(x));
    }
    inside.backward();  // forward inside, backward outside: averaged
    EXPECT_EQ(net->p.grad().item(), 2);
    net->p.clear_grad();
    const Tensor outside = sum(model(x));
    {
      const auto no_sync = model.no_sync();
      outside.backward();  // forward outside, backward inside: local
    }
    EXPECT_EQ(net->p.grad().item(), group->rank() == 0 ? 1 : 3);
    sum(model(x)).backward();  // averages what has accumulated
    EXPECT_EQ(net->p.grad().item(), 4);
  });
}

TEST(DataParallel, AveragesAParameterThatIsUsedTwiceOnce) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Scale>(std::vector<float>{3});
    DataParallel model(net, group);
    const auto x = Tensor::from<float>({static_cast<float>(group->rank() + 1)}, {1});
    sum(model(model(x))).backward();  // p^2 x
    EXPECT_EQ(net->p.grad().item(), 9);
  });
}

TEST(DataParallel, LeavesFunctionalGradLocal) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Scale>(std::vector<float>{3});
    DataParallel model(net, group);
    const auto x = Tensor::from<float>({static_cast<float>(group->rank() + 1)}, {1});
    EXPECT_EQ(grad({sum(model(x))}, {net->p})[0].item(), group->rank() + 1);
  });
}

TEST(DataParallel, AveragesSecondOrderGradients) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Scale>(std::vector<float>{3});
    DataParallel model(net, group);
    const auto x = Tensor::from<float>({static_cast<float>(group->rank() + 1)}, {1});
    const Tensor y = model(x);
    sum(y * y).backward(Tensor(), {.create_graph = true});  // 2 p x^2, mean over x = 1, 2: 5 p
    const Tensor first = net->p.grad();
    EXPECT_EQ(first.item(), 15);
    net->p.clear_grad();
    sum(first * first).backward();  // 50 p on every rank, averaged
    EXPECT_NEAR(net->p.grad().item(), 150, 1e-4);
    net->zero_grad();
  });
}

// Case 8 of the public reports.
TEST(DataParallel, NamesAParameterThatWasReplaced) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Sequential>(std::make_shared<Linear>(3, 2));
    DataParallel model(net, group);
    auto layer = std::dynamic_pointer_cast<Linear>(net->named_modules().back().second);
    ASSERT_NE(layer, nullptr);
    layer->weight = Tensor::ones({2, 3}).set_requires_grad();
    EXPECT_THAT(
        [&] {
          model(Tensor::ones({1, 3}));
        },
        ThrowsMessage<Error>(AllOf(HasSubstr("'0.weight'"), HasSubstr("replaced"))));
  });
}

// Case 14 of the public reports.
// A model with a buffer.
class Counter : public Scale {
 public:
  Counter() : Scale({1, 2}) { register_buffer("count", count); }
  Tensor count = Tensor::zeros({3});
};

TEST(DataParallel, TellsEveryRankWhereOnlySomeAreInTrainingMode) {
  for (const bool first : {true, false}) {
    for (const BufferMode buffers : {BufferMode::kBroadcast, BufferMode::kAverage}) {
      with_ranks(2, [&](const Group& group) {
        auto net = std::make_shared<Counter>();
        DataParallel model(net, group, {.buffers = buffers});
        const auto step = [&] { sum(model(Tensor::ones({2}))).backward(); };
        if (!first) step();
        if (group->rank() == 1) model.eval();
        const std::string here = group->rank() == 0
                                     ? "rank 0 begins a forward in training mode"
                                     : "rank 1 averages gradients, and that rank's newest forward "
                                       "was in eval mode";
        try {
          step();
          ADD_FAILURE() << "no error on rank " << group->rank();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
          EXPECT_THAT(error.what(), AllOf(HasSubstr(here), HasSubstr("call train() or eval()")));
        }
      });
    }
  }
}

TEST(DataParallel, NamesTheFirstDifferenceBetweenModels) {
  const auto message_on_both = [](const auto& make, const auto& matcher) {
    with_ranks(2, [&](const Group& group) {
      EXPECT_THAT([&] { DataParallel(make(group->rank()), group); }, ThrowsMessage<Error>(matcher));
    });
  };
  message_on_both([](int r) { return std::make_shared<Linear>(3, 2, r == 0); },
                  AllOf(HasSubstr("'bias' (2) f32"), HasSubstr("rank 1 has nothing")));
  message_on_both([](int r) { return std::make_shared<Linear>(3, 2 + r); },
                  AllOf(HasSubstr("'weight' (2, 3)"), HasSubstr("rank 1 has 'weight' (3, 3)")));
  message_on_both(
      [](int r) {
        return std::make_shared<Scale>(std::vector<float>{1}, r == 0 ? "scale" : "gain");
      },
      AllOf(HasSubstr("'scale'"), HasSubstr("'gain'")));
}

TEST(DataParallel, NamesParametersThatAreFrozenOnSomeRanksOnly) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Branches>();
    (group->rank() == 0 ? net->left : net->right)->p.set_requires_grad(false);
    EXPECT_THAT([&] { DataParallel(net, group); },
                ThrowsMessage<Error>(AllOf(HasSubstr("'left.p'"), HasSubstr("trainable"))));
  });
}

TEST(DataParallel, TellsTheOthersOfABackwardThatFailed) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Branches>();
    DataParallelOptions options;
    options.reducer.first_bucket_bytes = 1;
    DataParallel model(net, group, options);
    Tensor x = Tensor::ones({1}).set_requires_grad();
    // The right branch's bucket goes out; then rank 0 fails before the left one's.
    if (group->rank() == 0) {
      x.register_hook(
          [](const Tensor&) -> Tensor { throw Error(ErrorCode::kInternal, "hook", "it failed"); });
    }
    const Tensor middle = net->left->forward(x * 1.0);
    const Tensor loss = sum(net->right->forward(middle));
    try {
      loss.backward();
      if (group->rank() == 0) ADD_FAILURE() << "want an error";
      // Rank 1 may have had its averages before rank 0 failed; the next backward tells it.
      sum(model(x)).backward();
      ADD_FAILURE() << "want an error";
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::kTimeout) << error.what();
    }
  });
}

TEST(DataParallel, LeavesAClearedGradientNullAfterNoSync) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Branches>();
    DataParallel model(net, group);
    {
      const auto no_sync = model.no_sync();
      sum(model(Tensor::ones({1}))).backward();
    }
    net->zero_grad();
    net->take_left = false;
    sum(model(Tensor::ones({1}))).backward();
    EXPECT_FALSE(net->left->p.has_grad());
    EXPECT_TRUE(net->right->p.has_grad());
  });
}

// Case 22 of the public reports.
TEST(DataParallel, FindsValuesThatWereLoadedOnOneRankAlone) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Linear>(3, 2);
    DataParallel model(net, group);
    if (group->rank() == 0) {
      NoGrad no_grad;
      net->bias.copy_(Tensor::from<float>({5, 6}, {2}));
    }
    EXPECT_THAT(
        [&] {
          sum(model(Tensor::ones({1, 3}))).backward();
        },
        ThrowsMessage<Error>(
            AllOf(HasSubstr("drifted"), HasSubstr("'bias'"), HasSubstr("on rank 1"))));
  });
}

TEST(DataParallel, AcceptsTheSameChangeOnEveryRank) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Linear>(3, 2);
    DataParallel model(net, group);
    NoGrad no_grad;
    net->bias.copy_(Tensor::from<float>({5, 6}, {2}));
    if (group->rank() == 0) net->bias.copy_(Tensor::from<float>({5, 6}, {2}));
    const EnableGrad enable;
    sum(model(Tensor::ones({1, 3}))).backward();
    EXPECT_TRUE(net->bias.has_grad());
  });
}

TEST(DataParallel, NamesDifferentNumbersOfBackwardsUnderNoSync) {
  with_ranks(3, [](const Group& group) {
    auto net = std::make_shared<Scale>(std::vector<float>{1});
    DataParallel model(net, group);
    const Tensor x = Tensor::from<float>({1}, {1});
    {
      const auto no_sync = model.no_sync();
      for (int i = 0; i < 1 + group->rank() % 2; ++i) sum(model(x)).backward();
    }
    EXPECT_THAT([&] { sum(model(x)).backward(); },
                ThrowsMessage<Error>(AllOf(HasSubstr("in 1 to 2 backwards under no_sync()"),
                                           HasSubstr("rank " + std::to_string(group->rank())))));
  });
}

TEST(DataParallel, RefusesABackwardThatItsWrapperDidNotLiveToSee) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Scale>(std::vector<float>{1});
    Tensor loss;
    {
      DataParallel model(net, group);
      loss = sum(model(Tensor::from<float>({1}, {1})));
    }
    EXPECT_THAT([&] { loss.backward(); }, ThrowsMessage<Error>(HasSubstr("the wrapper")));
  });
}

TEST(DataParallel, NamesAParameterThatWasConvertedAfterWrapping) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Scale>(std::vector<float>{1});
    DataParallel model(net, group);
    net->to(DType::kF64);
    EXPECT_THAT([&] { model(Tensor::ones({1}, {DType::kF64})); },
                ThrowsMessage<Error>(HasSubstr("parameter 'p' was converted after wrapping")));
  });
}

// A module of two inputs and two outputs.
class Twins : public Scale {
 public:
  using Scale::Scale;
  struct Output {
    Tensor plain;
    std::vector<std::pair<std::string, Tensor>> more;
    template <class Visitor>
    void visit_tensors(Visitor&& visitor) {
      visitor(plain);
      visitor(more);
    }
  };
  Output both(const Tensor& a, const Tensor& b) { return {a * p, {{"second", b * p}}}; }
};

TEST(DataParallel, WatchesEveryTensorOfAStructure) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Twins>(std::vector<float>{1});
    DataParallel model(net, group);
    const Tensor x = Tensor::from<float>({static_cast<float>(group->rank())}, {1});
    const auto out = model.call([&] { return net->both(x, x + 1.0); });
    sum(out.more[0].second).backward();
    EXPECT_THAT(net->p.grad().to_vector<float>(), ElementsAre(1.5));
    EXPECT_FALSE(out.plain.is_leaf());
  });
}

TEST(DataParallel, LeavesAPartWithAWrapperOfItsOwnToThat) {
  with_ranks(4, [](const Group& group) {
    const std::shared_ptr<comm::Communicator> pair = group->split(group->rank() / 2);
    auto net = std::make_shared<Branches>();
    const auto r = static_cast<float>(group->rank());
    auto part = std::make_shared<DataParallel>(net->right, pair);
    class Whole : public Module {
     public:
      Whole(std::shared_ptr<Module> a, std::shared_ptr<Module> b) : left(a), right(b) {
        register_module("left", a);
        register_module("right", b);
      }
      Tensor forward(const Tensor& x) override { return left->forward(x) + right->forward(x); }
      std::shared_ptr<Module> left, right;
    };
    DataParallel model(std::make_shared<Whole>(net->left, part), group);
    sum(model(Tensor::from<float>({r}, {1}))).backward();
    EXPECT_THAT(net->left->p.grad().to_vector<float>(), ElementsAre(1.5));
    EXPECT_THAT(net->right->p.grad().to_vector<float>(), ElementsAre(r < 2 ? 0.5f : 2.5f));
  });
}

TEST(DataParallel, TouchesNothingThatItIsToldToIgnore) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Branches>();
    const auto r = static_cast<float>(group->rank());
    {
      NoGrad no_grad;
      net->right->p.fill_(r);
    }
    DataParallel model(net, group, {.ignore = {"right"}});
    EXPECT_EQ(net->right->p.item(), r);
    net->take_left = false;
    (sum(model(Tensor::from<float>({1 + r}, {1}))) + 0.0 * sum(net->left->p)).backward();
    EXPECT_THAT(net->right->p.grad().to_vector<float>(), ElementsAre(1 + r));
    EXPECT_THROW(DataParallel(net, group, {.ignore = {"middle"}}), Error);
  });
}

TEST(DataParallel, ComparesInsteadOfSendingWhereItIsToldTo) {
  with_ranks(2, [](const Group& group) {
    auto same = std::make_shared<Scale>(std::vector<float>{1});
    DataParallel(same, group, {.broadcast_at_start = false});
    auto own = std::make_shared<Scale>(std::vector<float>{static_cast<float>(group->rank())});
    EXPECT_THAT([&] { DataParallel(own, group, {.broadcast_at_start = false}); },
                ThrowsMessage<Error>(HasSubstr("'p'")));
  });
}

TEST(DataParallel, RefusesAModelWithNothingToTrain) {
  with_ranks(2, [](const Group& group) {
    auto net = std::make_shared<Scale>(std::vector<float>{1});
    net->p.set_requires_grad(false);
    EXPECT_THAT([&] { DataParallel(net, group); },
                ThrowsMessage<Error>(HasSubstr("requires a gradient")));
  });
}

// Random models, bucket sizes and world sizes: the average of the ranks' gradients is the gradient
// of the whole batch, over several steps, and replicas stay the same bits.
TEST(DataParallel, EqualsTrainingOnTheWholeBatch) {
  std::mt19937 random(20261129);
  for (int round = 0; round < 8; ++round) {
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    const int ranks = pick(2, 4);
    const int rows = pick(1, 5);
    const int steps = pick(2, 4);
    std::vector<int> widths = {pick(1, 9)};
    for (int layers = pick(1, 4); layers > 0; --layers) widths.push_back(pick(1, 40));
    DataParallelOptions options;
    options.reducer.first_bucket_bytes = pick(1, 400);
    options.reducer.bucket_bytes = pick(1, 4000);

    const auto build = [&] {
      manual_seed(static_cast<uint64_t>(round));
      auto net = std::make_shared<Sequential>();
      for (size_t i = 1; i < widths.size(); ++i) {
        net->push_back(std::make_shared<Linear>(widths[i - 1], widths[i]));
      }
      return net;
    };
    const auto batch = [&](int step) {
      manual_seed(static_cast<uint64_t>(100 + step));
      return randn({ranks * rows, widths[0]});
    };
    const auto train = [&](Module& model, Module& net, int rank, int world) {
      SGD optimizer(net.named_parameters(), {.lr = 0.05, .momentum = 0.9});
      for (int step = 0; step < steps; ++step) {
        const int64_t share = ranks * rows / world;
        const Tensor y = model(batch(step).narrow(0, rank * share, share));
        optimizer.zero_grad();
        mean(y * y).backward();
        optimizer.step();
      }
    };
    auto alone = build();
    train(*alone, *alone, 0, 1);
    const auto expected = values_of(alone->parameters());
    with_ranks(ranks, [&](const Group& group) {
      auto net = build();
      DataParallel model(net, group, options);
      train(model, *net, group->rank(), ranks);
      model.check_in_lockstep();
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        EXPECT_THAT(net->parameters()[i].to_vector<float>(),
                    Pointwise(NearWithin(2e-5), expected[i]))
            << "round " << round << ", " << net->named_parameters()[i].first;
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::nn
