#include "lockstep/nn/grad_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "layers.h"
#include "lockstep/core/autocast.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/ema.h"
#include "lockstep/nn/linear.h"
#include "ranks.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(GradScaler, StepsAsWithoutIt) {
  Tensor a = golden::leaf(1, {3});
  Tensor b = a.detach().clone().set_requires_grad();
  SGD plain({{"a", a}}, {.lr = 0.125});
  SGD scaled({{"b", b}}, {.lr = 0.125});
  GradScaler scaler;
  for (int i = 0; i < 3; ++i) {
    plain.zero_grad();
    scaled.zero_grad();
    sum(square(a)).backward();
    plain.step();
    scaler.scale(sum(square(b))).backward();
    EXPECT_TRUE(scaler.step(scaled));
    scaler.update();
  }
  EXPECT_EQ(a.to_vector<double>(), b.to_vector<double>());  // the scale is a power of two
}

TEST(GradScaler, KeepsSmallGradientsOfF16) {
  Tensor w = Tensor::from<float>({1, 1}, {1, 2}).set_requires_grad();
  const Tensor x = Tensor::full({1, 2}, 1e-6);
  const auto gradient = [&](double scale) {
    w.clear_grad();
    GradScaler scaler({.init_scale = scale});
    Tensor loss;
    {
      const Autocast autocast(DType::kF16);
      loss = sum(linear(x, w)) * 1e-4;
    }
    scaler.scale(loss).backward();
    SGD optimizer({{"w", w}}, {.lr = 0});
    scaler.unscale(optimizer);
    return w.grad().to_vector<float>()[0];
  };
  EXPECT_EQ(gradient(1), 0);
  EXPECT_NEAR(gradient(65536) / 1e-10, 1, 0.1);
}

TEST(GradScaler, LeavesOutAStepThatIsNotFiniteAndAdaptsItsScale) {
  Tensor w = Tensor::ones({2}).set_requires_grad();
  SGD optimizer({{"w", w}}, {.lr = 1});
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  const auto step = [&](double gradient) {
    w.set_grad(Tensor::from<float>({1, static_cast<float>(gradient)}, {2}));
    const bool taken = scaler.step(optimizer);
    scaler.update();
    return taken;
  };
  EXPECT_TRUE(step(1));
  for (const double bad : {kInf, -kInf, std::nan("")}) {
    const std::vector<float> before = w.to_vector<float>();
    const double scale = scaler.scale();
    EXPECT_FALSE(step(bad));
    EXPECT_EQ(w.to_vector<float>(), before);
    EXPECT_EQ(scaler.scale(), scale / 2);
  }
  EXPECT_TRUE(step(1));  // the count starts anew
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_TRUE(step(1));
  EXPECT_EQ(scaler.scale(), 2);
}

TEST(GradScaler, GradientsAreUnscaledOnceForClipping) {
  Tensor w = Tensor::ones({2}).set_requires_grad();
  SGD optimizer({{"w", w}}, {.lr = 1});
  GradScaler scaler({.init_scale = 4});
  w.set_grad(Tensor::from<float>({12, 16}, {2}));
  scaler.unscale(optimizer);
  EXPECT_NEAR(clip_grad_norm_({w}, 1), 5, 1e-6);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_NEAR(w.to_vector<float>()[0], 1 - 0.6, 1e-5);
  EXPECT_THAT(error_of([&] { scaler.unscale(optimizer); }), HasSubstr("already"));
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("stepped already"));
  scaler.update();
  EXPECT_THAT(error_of([&] { scaler.update(); }), HasSubstr("after step()"));
}

TEST(GradScaler, GoesOnFromItsState) {
  Tensor w = Tensor::ones({2}).set_requires_grad();
  SGD optimizer({{"w", w}}, {.lr = 0});
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  w.set_grad(Tensor::ones({2}));
  scaler.step(optimizer);
  scaler.update();
  GradScaler other({.init_scale = 1, .growth_interval = 2});
  other.load_named_state(scaler.named_state());
  EXPECT_EQ(other.scale(), 8);
  other.step(optimizer);
  other.update();
  EXPECT_EQ(other.scale(), 16);
  error_of(
      [&] {
        other.load_named_state({{"scale", 0}, {"growth_tracker", 0}});
      },
      ErrorCode::kMismatch);
  error_of([&] { other.load_named_state({{"scale", 1}}); }, ErrorCode::kMismatch);
  EXPECT_EQ(other.scale(), 16);
  error_of([] { GradScaler({.growth_factor = 1}); });
}

// Gradients that nobody averages.
TEST(GradScaler, AllRanksOfAGroupLeaveOutTheStepThatOneMust) {
  for (int world = 1; world <= 4; ++world) {
    with_ranks(world, [&](const std::shared_ptr<comm::Communicator>& group) {
      Tensor p = Tensor::ones({3}).set_requires_grad();
      SGD optimizer({{"p", p}}, {.lr = 1});
      GradScaler scaler({.init_scale = 8, .group = group});
      for (int step = 0; step < 3; ++step) {
        const bool overflows = step == 1 && group->rank() == world - 1;
        optimizer.zero_grad();
        scaler.scale(sum(p) * (overflows ? kInf : 1.0)).backward();
        EXPECT_EQ(scaler.step(optimizer), step != 1);
        scaler.update();
      }
      EXPECT_EQ(p.to_vector<float>(), std::vector<float>(3, -1));
      EXPECT_EQ(scaler.scale(), 4);
    });
  }
}

// Averages are the same on every rank, an infinity too.
TEST(GradScaler, UnderDataParallelAllRanksDecideAlike) {
  for (int world = 1; world <= 4; ++world) {
    std::vector<std::vector<std::vector<float>>> values(static_cast<size_t>(world));
    with_ranks(world, [&](const std::shared_ptr<comm::Communicator>& group) {
      manual_seed(4);
      auto net = std::make_shared<Linear>(3, 2);
      DataParallel model(net, group);
      AdamW optimizer(net->named_parameters());
      ExponentialMovingAverage average(*net, 0.9);
      GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
      for (int step = 0; step < 6; ++step) {
        const bool overflows = step == 2 && group->rank() == world / 2;
        optimizer.zero_grad();
        const auto r = static_cast<float>(group->rank() + step);
        const Tensor x = Tensor::from<float>({r, 1 - r, 2 * r + 1}, {1, 3});
        scaler.scale(sum(square(model(x))) * (overflows ? kInf : 1.0)).backward();
        scaler.unscale(optimizer);
        clip_grad_norm_(net->parameters(), 0.1);
        EXPECT_EQ(scaler.step(optimizer), step != 2);
        scaler.update();
        average.update();
      }
      // Up after two good steps, down, up after two, and one more.
      EXPECT_EQ(scaler.scale(), 2048);
      auto& mine = values[static_cast<size_t>(group->rank())];
      mine = values_of(net->parameters());
      for (const auto& [name, tensor] : average.named_state()) {
        if (is_floating(tensor.dtype())) mine.push_back(tensor.to_vector<float>());
      }
      for (const float value : mine[0]) EXPECT_TRUE(std::isfinite(value));
    });
    for (const auto& other : values) EXPECT_EQ(other, values[0]);
  }
}

}  // namespace
}  // namespace lockstep::nn
