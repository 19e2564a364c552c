#include "lockstep/core/autocast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <thread>

#include "lockstep/core/functional.h"
#include "lockstep/core/ops.h"

namespace lockstep {
namespace {

Tensor sample(const Shape& shape, int salt) {
  Tensor x = Tensor::empty(shape);
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] =
        static_cast<float>(std::sin(1.0 + 1.3 * salt + 0.9 * static_cast<double>(i)));
  }
  return x;
}

TEST(Autocast, OpsAreInTheDtypeOfTheirList) {
  const Tensor x = sample({5, 7}, 1);
  const Tensor w = sample({3, 7}, 2);
  const Tensor image = sample({1, 2, 4, 4}, 3);
  const Tensor kernel = sample({3, 2, 3, 3}, 4);
  const Tensor heads = sample({2, 3, 4}, 5);
  for (const DType low : {DType::kBF16, DType::kF16}) {
    const Autocast autocast(low);
    EXPECT_EQ(matmul(x, w.t()).dtype(), low);
    EXPECT_EQ(linear(x, w, sample({3}, 6)).dtype(), low);
    EXPECT_EQ(conv2d(image, kernel).dtype(), low);
    EXPECT_EQ(scaled_dot_product_attention(heads, heads, heads).dtype(), low);
    EXPECT_EQ(
        lstm_sequence(sample({2, 3, 8}, 1), sample({3, 2}, 2), sample({3, 2}, 3), sample({8, 2}, 4))
            .dtype(),
        low);
    const Tensor y = x.to(low);
    EXPECT_EQ(softmax(y, 1).dtype(), DType::kF32);
    EXPECT_EQ(log_softmax(y, 1).dtype(), DType::kF32);
    EXPECT_EQ(sum(y).dtype(), DType::kF32);
    EXPECT_EQ(mean(y).dtype(), DType::kF32);
    EXPECT_EQ(layer_norm(y, {7}, sample({7}, 1), sample({7}, 2)).dtype(), DType::kF32);
    EXPECT_EQ(group_norm(image.to(low), 1).dtype(), DType::kF32);
    EXPECT_EQ(mse_loss(y, x).dtype(), DType::kF32);
    EXPECT_EQ(cross_entropy(y, Tensor::from<int64_t>({0, 1, 2, 3, 4}, {5})).dtype(), DType::kF32);
    EXPECT_EQ((x + y).dtype(), DType::kF32);
    EXPECT_EQ((y + y).dtype(), low);
    EXPECT_EQ((y * x.to(DType::kF64)).dtype(), DType::kF64);
    EXPECT_EQ(relu(y).dtype(), low);
    EXPECT_EQ(matmul(x.to(DType::kF64), w.to(DType::kF64).t()).dtype(), DType::kF64);
  }
  EXPECT_EQ(matmul(x, w.t()).dtype(), DType::kF32);
}

TEST(Autocast, GradientsHaveTheDtypeOfTheirParametersAndBackwardTheDtypesOfForward) {
  Tensor w = sample({3, 7}, 2).set_requires_grad();
  const Tensor x = sample({5, 7}, 1);
  const Tensor t = sample({5, 3}, 3);
  Tensor loss;
  {
    const Autocast autocast(DType::kBF16);
    loss = mse_loss(linear(x, w), t);
  }
  EXPECT_EQ(loss.dtype(), DType::kF32);
  loss.backward();
  EXPECT_EQ(w.grad().dtype(), DType::kF32);
  const std::vector<float> outside = w.grad().to_vector<float>();
  // The same with the inputs rounded by hand.
  Tensor v = w.detach().clone().set_requires_grad();
  mse_loss(linear(x.to(DType::kBF16), v.to(DType::kBF16)).to(DType::kF32), t).backward();
  EXPECT_EQ(outside, v.grad().to_vector<float>());
  // A scope around backward changes nothing.
  w.clear_grad();
  {
    const Autocast autocast(DType::kF16);
    const Autocast inner(DType::kBF16);
    mse_loss(linear(x, w), t).backward();
  }
  EXPECT_EQ(w.grad().to_vector<float>(), outside);
}

TEST(Autocast, IsNearTheExactResult) {
  const Tensor image = sample({2, 3, 6, 5}, 1);
  const Tensor kernel = sample({4, 3, 3, 3}, 2);
  const Tensor want = conv2d(image, kernel);
  const Autocast autocast(DType::kBF16);
  const Tensor got = conv2d(image, kernel).to(DType::kF32);
  // 27 products of numbers below 1, each rounded to 2^-9 twice.
  EXPECT_LT(max(abs(got - want)).item(), 27 * 0x1p-8);
  EXPECT_GT(max(abs(got - want)).item(), 0);
}

TEST(Autocast, ScopesNestAndEnd) {
  EXPECT_FALSE(Autocast::is_enabled());
  {
    const Autocast outer(DType::kF16);
    {
      const Autocast off(DType::kBF16, false);
      EXPECT_FALSE(Autocast::is_enabled());
      EXPECT_EQ(matmul(sample({2, 2}, 1), sample({2, 2}, 2)).dtype(), DType::kF32);
    }
    EXPECT_EQ(Autocast::dtype(), DType::kF16);
    bool elsewhere = true;
    std::thread([&] { elsewhere = Autocast::is_enabled(); }).join();
    EXPECT_FALSE(elsewhere);
  }
  EXPECT_FALSE(Autocast::is_enabled());
}

TEST(Autocast, ACheckpointIsComputedAgainInTheSameDtypes) {
  Tensor w = sample({4, 4}, 2).set_requires_grad();
  const Tensor x = sample({3, 4}, 1).set_requires_grad();
  std::vector<std::vector<float>> gradients;
  for (const bool checkpoint : {false, true}) {
    w.clear_grad();
    const auto f = [&](const Tensors& in) { return tanh(linear(in[0], w)); };
    Tensor y;
    {
      const Autocast autocast(DType::kBF16);
      y = checkpoint ? gradient_checkpoint(f, {x}) : f({x});
    }
    EXPECT_EQ(y.dtype(), DType::kBF16);
    sum(y.to(DType::kF32)).backward();
    gradients.push_back(w.grad().to_vector<float>());
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(Autocast, WithoutAScopeMixedDtypesAreAnError) {
  const Tensor x = sample({2}, 1);
  EXPECT_THROW(x + x.to(DType::kBF16), Error);
  EXPECT_THROW(Autocast(DType::kF32), Error);
}

}  // namespace
}  // namespace lockstep
