#include "lockstep/nn/optim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/core/ops.h"
#include "lockstep/nn/linear.h"

// What holds for every optimiser; sgd_test.cpp and adam_test.cpp hold their formulas.
namespace lockstep::nn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

template <class T>
std::vector<std::string> names(const std::vector<std::pair<std::string, T>>& entries) {
  std::vector<std::string> out;
  for (const auto& [name, value] : entries) out.push_back(name);
  return out;
}

// Two parameters and what they get as gradients in step t.
struct Problem {
  Tensor a = golden::leaf(1, {7});
  Tensor b = golden::leaf(2, {2, 3});

  NamedTensors named() const { return {{"net.a", a}, {"net.b", b}}; }
  void set_gradients(int t) {
    a.set_grad(golden::wave(30 + t, {7}));
    b.set_grad(golden::wave(60 + t, {2, 3}));
  }
  std::vector<double> values() const {
    std::vector<double> out = a.to_vector<double>();
    for (const double v : b.to_vector<double>()) out.push_back(v);
    return out;
  }
};

// Case 5 of the public reports.
TEST(Optimizer, SkipsAParameterWithoutAGradientEvenItsDecay) {
  Tensor used = Tensor::ones({1}).set_requires_grad();
  Tensor unused = Tensor::ones({1}).set_requires_grad();
  SGD optimizer({{"used", used}, {"unused", unused}},
                {.lr = 1, .momentum = 0.9, .weight_decay = 0.1});
  sum(used * 0.0).backward();
  optimizer.step();
  EXPECT_FLOAT_EQ(static_cast<float>(used.item()), 0.9f);
  EXPECT_EQ(unused.item(), 1);
  EXPECT_FALSE(unused.has_grad());
  EXPECT_THAT(names(optimizer.named_state()), ElementsAre("momentum_buffer.used"));

  AdamW adam({{"used", used}, {"unused", unused}}, {.weight_decay = 0.1});
  adam.step();
  EXPECT_EQ(unused.item(), 1);
  EXPECT_THAT(names(adam.named_state()),
              ElementsAre("exp_avg.used", "exp_avg_sq.used", "step.used"));
}

TEST(Optimizer, WithNoGradientsAtAllDoesNothing) {
  Problem problem;
  const auto before = problem.values();
  SGD(problem.named(), {.lr = 1}).step();
  AdamW(problem.named()).step();
  EXPECT_EQ(problem.values(), before);
}

TEST(Optimizer, ZeroGradMakesGradientsNull) {
  Problem problem;
  SGD optimizer(problem.named());
  problem.set_gradients(0);
  optimizer.zero_grad();
  EXPECT_FALSE(problem.a.has_grad() || problem.b.has_grad());
}

TEST(Optimizer, AStepIsAChangeInPlaceToAGraphThatNeedsTheOldValue) {
  for (const bool adam : {false, true}) {
    Tensor w = golden::leaf(1, {3});
    const Tensor loss = sum(square(w) * golden::wave(2, {3}));
    w.set_grad(golden::wave(3, {3}));
    if (adam) {
      AdamW({{"w", w}}).step();
    } else {
      SGD({{"w", w}}).step();
    }
    EXPECT_THAT(error_of([&] { loss.backward(); }),
                AllOf(HasSubstr(adam ? "AdamW" : "SGD"), HasSubstr("square")));
    EXPECT_TRUE(w.requires_grad() && w.is_leaf());
  }
}

TEST(Optimizer, GroupsHaveOptionsOfTheirOwn) {
  Problem problem;
  SGD optimizer({{"net.a", problem.a}}, {.lr = 0.5});
  optimizer.add_group({{"net.b", problem.b}}, {.lr = 0});
  const auto b = problem.b.to_vector<double>();
  const auto a = problem.a.to_vector<double>();
  problem.set_gradients(0);
  optimizer.step();
  EXPECT_EQ(problem.b.to_vector<double>(), b);
  EXPECT_NE(problem.a.to_vector<double>(), a);
  optimizer.set_lr(0.25);
  EXPECT_EQ(optimizer.lr(0), 0.25);
  EXPECT_EQ(optimizer.lr(1), 0.25);
  optimizer.set_lr(0.125, 1);
  EXPECT_EQ(optimizer.lr(0), 0.25);
  EXPECT_EQ(optimizer.lr(1), 0.125);
  EXPECT_EQ(optimizer.group_count(), 2u);
  EXPECT_THAT(names(optimizer.named_parameters()), ElementsAre("net.a", "net.b"));
  EXPECT_THAT(names(optimizer.named_parameters(1)), ElementsAre("net.b"));
  EXPECT_THAT(error_of([&] { optimizer.lr(2); }), HasSubstr("below 2"));
}

TEST(Optimizer, RefusesParametersThatItCannotStepOnce) {
  Problem problem;
  const Tensor result = problem.a * 2.0;
  const Tensor integers = Tensor::arange(3);
  EXPECT_THAT(error_of([&] { SGD(NamedTensors{}); }), HasSubstr("got none"));
  EXPECT_THAT(error_of([&] {
                SGD({{"x", problem.a}, {"y", problem.a}});
              }),
              AllOf(HasSubstr("'x'"), HasSubstr("'y'"), HasSubstr("twice")));
  EXPECT_THAT(error_of([&] { SGD({{"x", problem.a}, {"x", problem.b}}); }), HasSubstr("'x'"));
  EXPECT_THAT(error_of([&] { SGD({{"", problem.a}}); }), HasSubstr("empty"));
  EXPECT_THAT(error_of([&] { SGD({{"r", result}}); }), HasSubstr("'r'"));
  EXPECT_THAT(error_of([&] { SGD({{"i", integers}}); }), HasSubstr("'i'"));
  EXPECT_THAT(error_of([&] { SGD({{"u", Tensor()}}); }), HasSubstr("'u'"));
  const Tensor columns = Tensor::ones({4, 6}).narrow(1, 0, 3);
  EXPECT_THAT(error_of([&] { SGD({{"c", columns}}); }), HasSubstr("contiguous()"));
  SGD optimizer({{"net.a", problem.a}});
  EXPECT_THAT(error_of([&] { optimizer.add_group(problem.named(), {}); }), HasSubstr("net.a"));
  EXPECT_EQ(optimizer.group_count(), 1u);
}

TEST(Optimizer, TakesUnnamedTensorsUnderTheNamesThatTheyHave) {
  Linear linear(2, 3);
  linear.named_parameters();
  const Tensor extra = Tensor::ones({1}).set_requires_grad();
  const SGD optimizer(std::vector<Tensor>{linear.weight, extra});
  EXPECT_THAT(names(optimizer.named_parameters()), ElementsAre("weight", "parameter.1"));
}

TEST(Optimizer, StepsMemoryInAnyOrder) {
  // The weights of one problem are channels-last, those of the other are not; gradients of both
  // come in both orders.
  const Shape shape = {2, 3, 2, 5};
  Tensor plain = golden::leaf(1, shape);
  Tensor last = golden::wave(1, shape).channels_last().set_requires_grad();
  ASSERT_FALSE(last.is_contiguous());
  AdamW optimizer({{"plain", plain}, {"last", last}}, {.lr = 0.1});
  SGD other({{"plain", plain}, {"last", last}}, {.lr = 0.1, .momentum = 0.5});
  for (int t = 0; t < 4; ++t) {
    const Tensor g = golden::wave(t, shape);
    plain.set_grad(t % 2 == 0 ? g : g.channels_last());
    last.set_grad(t < 2 ? g : g.channels_last());
    optimizer.step();
    other.step();
  }
  EXPECT_EQ(plain.to_vector<double>(), last.to_vector<double>());
  EXPECT_NE(plain.to_vector<double>(), golden::wave(1, shape).to_vector<double>());
  EXPECT_TRUE(last.is_channels_last());
}

template <class O>
std::vector<double> after_steps(int steps, int save_at, auto options) {
  Problem problem;
  auto optimizer = std::make_unique<O>(problem.named(), options);
  for (int t = 0; t < steps; ++t) {
    if (t == save_at) {
      auto resumed = std::make_unique<O>(problem.named());
      resumed->load_named_options(optimizer->named_options());
      resumed->load_named_state(optimizer->named_state());
      optimizer = std::move(resumed);
    }
    problem.set_gradients(t);
    if (t % 3 == 1) problem.b.clear_grad();
    optimizer->step();
  }
  return problem.values();
}

TEST(Optimizer, ResumesWithTheSameBits) {
  const SGDOptions sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
  const AdamWOptions adamw{.lr = 0.1, .betas = {0.7, 0.9}, .eps = 1e-3, .weight_decay = 0.2};
  for (const int at : {0, 1, 4}) {
    EXPECT_EQ(after_steps<SGD>(7, at, sgd), after_steps<SGD>(7, -1, sgd)) << "saved at " << at;
    EXPECT_EQ(after_steps<AdamW>(7, at, adamw), after_steps<AdamW>(7, -1, adamw))
        << "saved at " << at;
  }
}

TEST(Optimizer, LoadingCopies) {
  Problem problem;
  SGD optimizer(problem.named(), {.momentum = 0.9});
  Tensor buffer = golden::wave(5, {7});
  optimizer.load_named_state({{"momentum_buffer.net.a", buffer}});
  buffer.zero_();
  const NamedTensors state = optimizer.named_state();
  ASSERT_EQ(state.size(), 1u);  // net.b was not mentioned: never stepped
  EXPECT_EQ(state[0].second.to_vector<double>(), golden::wave(5, {7}).to_vector<double>());
}

TEST(Optimizer, StateThatDoesNotFitIsListedInFullAndChangesNothing) {
  Problem problem;
  AdamW optimizer(problem.named());
  problem.set_gradients(0);
  optimizer.step();
  const Tensor count = Tensor::zeros({}, {DType::kI64});
  const NamedTensors bad = {{"exp_avg.net.a", golden::wave(1, {6})},
                            {"exp_avg_sq.net.a", Tensor::ones({7})},
                            {"step.net.a", count},
                            {"exp_avg.net.b", golden::wave(1, {2, 3})},
                            {"exp_avg.net.c", golden::wave(1, {2})},
                            {"step.net.a", count}};
  for (const bool check_only : {true, false}) {
    const std::string message = error_of(
        [&] { check_only ? optimizer.check_named_state(bad) : optimizer.load_named_state(bad); },
        ErrorCode::kMismatch);
    EXPECT_THAT(
        message,
        AllOf(HasSubstr("exp_avg.net.a: want f64 (7), got f64 (6)"),
              HasSubstr("exp_avg_sq.net.a: want f64 (7), got f32 (7)"),
              HasSubstr("exp_avg_sq.net.b is missing"), HasSubstr("step.net.b is missing"),
              HasSubstr("exp_avg.net.c is unexpected"), HasSubstr("step.net.a comes twice")));
    EXPECT_THAT(message, Not(HasSubstr("\n  exp_avg.net.b")));
  }
  const NamedTensors state = optimizer.named_state();
  ASSERT_EQ(state.size(), 6u);
  EXPECT_EQ(state[2].first, "step.net.a");
  EXPECT_EQ(state[2].second.item_i64(), 1);
}

TEST(Optimizer, OptionsThatDoNotFitAreListedInFullAndChangeNothing) {
  Problem problem;
  SGD optimizer(problem.named(), {.lr = 0.5, .momentum = 0.25});
  NamedNumbers options = optimizer.named_options();
  EXPECT_THAT(names(options), ElementsAre("group0.lr", "group0.momentum", "group0.dampening",
                                          "group0.weight_decay", "group0.nesterov"));
  options[0].second = -1;
  options[2].first = "group1.dampening";
  EXPECT_THAT(error_of([&] { optimizer.load_named_options(options); }, ErrorCode::kMismatch),
              AllOf(HasSubstr("group0.dampening is missing"),
                    HasSubstr("group1.dampening is unexpected"), HasSubstr("-1")));
  EXPECT_EQ(optimizer.lr(), 0.5);
  EXPECT_THAT(error_of([&] { optimizer.set_option("lr", -2); }), HasSubstr("-2"));
  EXPECT_THAT(error_of([&] { optimizer.set_option("speed", 1); }), HasSubstr("momentum"));
  EXPECT_EQ(optimizer.lr(), 0.5);
  optimizer.set_option("momentum", 0.75);
  EXPECT_EQ(optimizer.option("momentum"), 0.75);
}

}  // namespace
}  // namespace lockstep::nn
