#include "lockstep/core/functional.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "lockstep/core/gradcheck.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/kernels/memory.h"

namespace lockstep {
namespace {

Tensor sample(const Shape& shape, int salt) {
  Tensor x = Tensor::empty(shape, {DType::kF64});
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = std::sin(1.0 + 1.3 * salt + 0.9 * static_cast<double>(i));
  }
  return x;
}

void expect_near(const Tensor& got, const Tensor& want, double tolerance = 1e-12) {
  ASSERT_EQ(got.shape(), want.shape());
  EXPECT_LE(max(abs(got.detach() - want.detach())).item(), tolerance);
}

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

// Two results of two inputs: a * exp(b), and sum(a) alone.
Tensors two(const Tensors& x) { return {x[0] * exp(x[1]), sum(x[0])}; }

TEST(Vjp, IsTheGradientInTheCotangentsDirection) {
  const Tensors x = {sample({3}, 1), sample({3}, 2)};
  const Tensors v = {sample({3}, 3), Tensor::scalar(0.5, {DType::kF64})};
  const VjpResult result = vjp(two, x, v);
  expect_near(result.outputs[0], x[0] * exp(x[1]));
  expect_near(result.gradients[0], v[0] * exp(x[1]) + 0.5);
  expect_near(result.gradients[1], v[0] * x[0] * exp(x[1]));
  EXPECT_FALSE(result.outputs[0].requires_grad());
}

TEST(Jvp, IsTheDerivativeInTheTangentsDirection) {
  const Tensors x = {sample({3}, 1), sample({3}, 2)};
  const Tensors t = {sample({3}, 3), sample({3}, 4)};
  const JvpResult result = jvp(two, x, t);
  expect_near(result.derivatives[0], exp(x[1]) * t[0] + x[0] * exp(x[1]) * t[1]);
  expect_near(result.derivatives[1], sum(t[0]));
}

TEST(Jvp, WhatDoesNotMatterHasDerivativesOfZero) {
  const auto f = [](const Tensors& x) -> Tensors {
    return {square(x[0]), Tensor::ones({2}, {DType::kF64})};
  };
  const Tensors x = {sample({3}, 1), sample({4}, 2)};
  const JvpResult forward = jvp(f, x, {sample({3}, 3), sample({4}, 4)});
  expect_near(forward.derivatives[0], 2 * x[0] * sample({3}, 3));
  expect_near(forward.derivatives[1], Tensor::zeros({2}, {DType::kF64}));
  const VjpResult back = vjp(f, x, {sample({3}, 3), sample({2}, 4)});
  expect_near(back.gradients[1], Tensor::zeros({4}, {DType::kF64}));
}

TEST(Vjp, GradientsCanBeDifferentiated) {
  const auto f = [](const Tensors& x) {
    return vjp([](const Tensors& y) -> Tensors { return {exp(y[0]) * y[0]}; }, {x[0]}, {x[1]},
               {.create_graph = true})
        .gradients[0];
  };
  EXPECT_EQ(gradcheck(f, {sample({3}, 1).set_requires_grad(), sample({3}, 2).set_requires_grad()}),
            "");
  const auto g = [](const Tensors& x) {
    return jvp([](const Tensors& y) -> Tensors { return {exp(y[0]) * y[0]}; }, {x[0]}, {x[1]},
               {.create_graph = true})
        .derivatives[0];
  };
  EXPECT_EQ(gradcheck(g, {sample({3}, 1).set_requires_grad(), sample({3}, 2).set_requires_grad()}),
            "");
}

TEST(Jvp, ErrorsNameTheShapes) {
  const Tensors x = {sample({3}, 1), sample({3}, 2)};
  EXPECT_NE(error_of([&] { jvp(two, x, {x[0]}); }).find("[jvp] want one tangent"),
            std::string::npos);
  EXPECT_NE(error_of([&] { jvp(two, x, {x[0], sample({4}, 1)}); }).find("(4)"), std::string::npos);
  EXPECT_NE(error_of([&] { vjp(two, x, {x[0], x[0]}); }).find("[vjp]"), std::string::npos);
}

// A segment of two inputs and a captured leaf, that drops.
struct Segment {
  Tensor weight = sample({3, 3}, 5).set_requires_grad();
  int calls = 0;

  Tensor operator()(const Tensors& x) {
    ++calls;
    const Tensor keep = rand({2, 3}) < 0.7;
    const Tensor h = tanh(matmul(x[0], weight)) * x[1];
    return where(keep, sin(h), 0.0);
  }
};

TEST(GradientCheckpoint, GradientsAreThoseOfAPlainCallForInputsLeavesAndDropout) {
  Segment segment;
  const Tensor a = sample({2, 3}, 1).set_requires_grad();
  const Tensor b = sample({2, 3}, 2).set_requires_grad();
  const auto run = [&](bool checkpoint) {
    manual_seed(11);
    // The weight is used before, inside and behind the segment.
    const Tensor h = exp(matmul(a, segment.weight));
    const auto f = [&](const Tensors& x) { return segment(x); };
    const Tensor y = checkpoint ? gradient_checkpoint(f, {h, b}) : f({h, b});
    const Tensor after = rand({2, 3}).to(DType::kF64);
    return sum(matmul(y * after, segment.weight) * sample({2, 3}, 4));
  };
  std::vector<Tensors> gradients;
  for (const bool checkpoint : {false, true}) {
    segment.calls = 0;
    const Tensor loss = run(checkpoint);
    gradients.push_back(grad({loss}, {a, b, segment.weight}));
    EXPECT_EQ(segment.calls, checkpoint ? 2 : 1);
    run(checkpoint).backward();
    const Tensors leaves = {a, b, segment.weight};
    for (size_t i = 0; i < leaves.size(); ++i) {
      expect_near(leaves[i].grad(), gradients[0][i]);
      Tensor(leaves[i]).clear_grad();
    }
  }
  for (size_t i = 0; i < 3; ++i) expect_near(gradients[1][i], gradients[0][i]);
}

TEST(GradientCheckpoint, IsRightToTheSecondOrder) {
  const auto f = [](const Tensors& x) {
    const Tensor h = x[0] * x[1];
    const auto inside = [&](const Tensors& y) { return exp(y[0]) * sin(y[0] * x[1]); };
    return gradient_checkpoint(inside, {h});
  };
  EXPECT_EQ(gradcheck(f, {sample({4}, 1).set_requires_grad(), sample({4}, 2).set_requires_grad()}),
            "");
}

TEST(GradientCheckpoint, AnInputMayComeTwiceAndSegmentsMayNest) {
  const auto f = [](const Tensors& x) {
    const auto inner = [](const Tensors& y) { return exp(y[0]) * y[1]; };
    const auto outer = [inner](const Tensors& y) {
      return gradient_checkpoint(inner, {sin(y[0]), y[1]}) + y[0];
    };
    return gradient_checkpoint(outer, {x[0], x[0]});
  };
  EXPECT_EQ(gradcheck(f, {sample({4}, 1).set_requires_grad()}), "");
}

TEST(GradientCheckpoint, HooksRunOnce) {
  Tensor w = sample({3}, 1).set_requires_grad();
  int calls = 0;
  w.register_hook([&](const Tensor& g) {
    ++calls;
    return g * 2;
  });
  const Tensor y =
      gradient_checkpoint([&](const Tensors& x) { return x[0] * w; }, {sample({3}, 2)});
  sum(y).backward();
  EXPECT_EQ(calls, 1);
  expect_near(w.grad(), 2 * sample({3}, 2));
}

TEST(GradientCheckpoint, KeepsNothingButItsInputs) {
  const Tensor x = randn({1 << 14}).set_requires_grad();
  const auto f = [](const Tensors& in) {
    Tensor y = in[0];
    for (int i = 0; i < 8; ++i) y = sin(y) * y;
    return y;
  };
  const auto kept = [&](bool checkpoint) {
    const int64_t before = memory_stats().in_use;
    const Tensor y = checkpoint ? gradient_checkpoint(f, {x}) : f({x});
    return memory_stats().in_use - before;
  };
  const int64_t plain = kept(false);
  EXPECT_LE(kept(true), plain / 6);
}

TEST(GradientCheckpoint, WithoutAGraphIsAPlainCall) {
  const auto f = [](const Tensors& x) { return exp(x[0]); };
  EXPECT_FALSE(gradient_checkpoint(f, {sample({3}, 1)}).requires_grad());
  const NoGrad no_grad;
  EXPECT_FALSE(gradient_checkpoint(f, {sample({3}, 1).set_requires_grad()}).requires_grad());
}

TEST(GradientCheckpoint, ErrorsSayWhatToDo) {
  const Tensor a = sample({3}, 1).set_requires_grad();
  const Tensor h = exp(a);
  EXPECT_NE(error_of([&] {
              gradient_checkpoint([&](const Tensors& x) { return x[0] * h; }, {a});
            }).find("a result of 'exp' that was computed outside; pass it as an input"),
            std::string::npos);
  Tensor w = sample({3}, 2).set_requires_grad();
  const Tensor y = gradient_checkpoint([&](const Tensors& x) { return x[0] * w; }, {a});
  {
    const NoGrad no_grad;
    w.mul_(2);
  }
  EXPECT_NE(error_of([&] { sum(y).backward(); }).find("changed in place by 'mul_'"),
            std::string::npos);
  int64_t size = 3;
  const Tensor z =
      gradient_checkpoint([&](const Tensors& x) { return narrow(x[0], 0, 0, size); }, {a});
  size = 2;
  EXPECT_NE(error_of([&] { sum(z).backward(); }).find("of shape (3) in the forward"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
