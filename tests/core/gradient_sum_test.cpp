// Gradients that several ops give one tensor are added up in place where nobody else sees the sum.

#include <gtest/gtest.h>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"

namespace lockstep {
namespace {

double at(const Tensor& x, int64_t i) { return reshape(x, {x.numel()}).select(0, i).item(); }

Tensor counted(const Shape& shape, double start) {
  return reshape(Tensor::arange(numel(shape)).to(DType::kF32) * 0.25 + start, shape);
}

// The sum of i times the i-th row of x, in parts.
Tensor weighted_rows(const Tensor& x) {
  Tensor y = sum(select(x, 0, 0)) * 0;
  for (int64_t i = 1; i < x.size(0); ++i) {
    y = y + sum(select(x, 0, i)) * static_cast<double>(i);
  }
  return y;
}

TEST(GradientSum, SlicesOfAResultAddToOneGradient) {
  Tensor leaf = counted({5, 7}, 1);
  leaf.set_requires_grad();
  backward({weighted_rows(leaf * 2)});
  for (int64_t i = 0; i < 35; ++i) {
    EXPECT_EQ(at(leaf.grad(), i), 2.0 * static_cast<double>(i / 7)) << i;
  }
}

TEST(GradientSum, SlicesOfALeafAddToOneGradient) {
  Tensor leaf = counted({5, 7}, 1);
  leaf.set_requires_grad();
  for (int times = 1; times < 3; ++times) {
    backward({weighted_rows(leaf)});
    for (int64_t i = 0; i < 35; ++i) {
      EXPECT_EQ(at(leaf.grad(), i), static_cast<double>(times * (i / 7))) << i;
    }
  }
}

TEST(GradientSum, OverlappingSlicesWithStepsAdd) {
  Tensor leaf = counted({9}, 0);
  leaf.set_requires_grad();
  const Tensor x = leaf * 1;
  backward(
      {sum(slice(x, 0, 0, 9, 2)) + sum(slice(x, 0, 1, 7, 3)) * 10 + sum(slice(x, 0, 3, 6, 1))});
  const double want[] = {1, 10, 1, 1, 12, 1, 1, 0, 1};
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(at(leaf.grad(), i), want[i]) << i;
}

// The gradient of sum() is one number that stands for all: adding to a row of it in place would
// change every row.
TEST(GradientSum, AnExpandedGradientIsNotAddedToInPlace) {
  Tensor leaf = counted({3, 4}, 0);
  leaf.set_requires_grad();
  const Tensor x = leaf * 1;
  const Tensor early = select(x, 0, 1);
  backward({sum(early) * 5 + sum(x)});
  for (int64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(at(leaf.grad(), i), i / 4 == 1 ? 6 : 1) << i;
  }
}

TEST(GradientSum, AGradientThatIsHeldElsewhereStaysWhatItWas) {
  Tensor leaf = counted({3, 4}, 0);
  leaf.set_requires_grad();
  const Tensor x = leaf * 1;
  const Tensor row = select(x, 0, 2);
  Tensor y = x * 3;
  Tensor held;
  y.register_hook([&](const Tensor& g) {
    held = g;
    return Tensor();
  });
  const Tensor given = counted({3, 4}, 2);
  backward({x + y, row}, {given, counted({4}, 9)});
  for (int64_t i = 0; i < 12; ++i) {
    const double g = 0.25 * static_cast<double>(i) + 2;
    EXPECT_EQ(at(given, i), g);
    EXPECT_EQ(at(held, i), g);
    const double more = i / 4 == 2 ? 0.25 * static_cast<double>(i % 4) + 9 : 0;
    EXPECT_EQ(at(leaf.grad(), i), 4 * g + more) << i;
  }
}

TEST(GradientSum, SecondOrderGoesThroughSlices) {
  Tensor x = counted({3, 2}, 1);
  x.set_requires_grad();
  const Tensor cube = x * x * x;
  const Tensor y = sum(select(cube, 0, 0)) * 2 + sum(select(cube, 0, 2));
  const Tensor first = grad({y}, {x}, {}, {.create_graph = true})[0];
  const Tensor second = grad({sum(first)}, {x})[0];
  for (int64_t i = 0; i < 6; ++i) {
    const double weight = i / 2 == 0 ? 2 : (i / 2 == 2 ? 1 : 0);
    EXPECT_FLOAT_EQ(static_cast<float>(at(second, i)), static_cast<float>(6 * weight * at(x, i)));
  }
}

// Whether the gradient of the logits of a cross-entropy takes their memory, and that the gradient
// of what they came from is right; use() gets them before backward.
template <class Use>
bool is_written_over_logits(const Use& use, BackwardOptions options = {}) {
  Tensor leaf = counted({5, 7}, -2);
  leaf.set_requires_grad();
  const Tensor targets = Tensor::from<int64_t>({2, 0, -100, 6, 1}, {5});
  Tensor logits = leaf * 0.5;
  const Tensor want = softmax(logits.detach(), 1);
  const float* memory = logits.data<float>();
  bool is_over = false;
  logits.register_hook([&](const Tensor& g) {
    is_over = g.data<float>() == memory;
    return Tensor();
  });
  const Tensor loss = cross_entropy(logits, targets, Reduction::kSum);
  [[maybe_unused]] const auto kept = use(logits);
  logits = Tensor();
  const Tensor gradient = grad({loss}, {leaf}, {}, options)[0];
  for (int64_t i = 0; i < 35; ++i) {
    const int64_t target = targets.select(0, i / 7).item_i64();
    const double p = target < 0 ? 0 : at(want, i) - (target == i % 7 ? 1 : 0);
    EXPECT_NEAR(at(gradient, i), p * 0.5, 1e-6) << i;
  }
  return is_over;
}

TEST(GradientSum, ACrossEntropysGradientIsWrittenOverLogitsThatNobodyElseHas) {
  EXPECT_TRUE(is_written_over_logits([](const Tensor&) { return 0; }));
  EXPECT_FALSE(is_written_over_logits([](const Tensor& x) { return x; }));
  EXPECT_FALSE(is_written_over_logits([](const Tensor& x) { return x.select(0, 1); }));
  // What another node has saved.
  EXPECT_FALSE(is_written_over_logits([](const Tensor& x) { return x * x; }));
  EXPECT_FALSE(is_written_over_logits([](const Tensor&) { return 0; }, {.retain_graph = true}));
  EXPECT_FALSE(is_written_over_logits([](const Tensor&) { return 0; }, {.create_graph = true}));
}

}  // namespace
}  // namespace lockstep
