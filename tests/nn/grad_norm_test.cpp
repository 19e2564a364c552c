#include "lockstep/nn/grad_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layers.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"
#include "lockstep/nn/grad_scaler.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

constexpr DType kFloats[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};

// Dense in two orders, with gaps, and no elements, of all floating dtypes.
std::vector<Tensor> tensors() {
  std::vector<Tensor> out;
  for (const DType dtype : kFloats) {
    const Tensor x = to(golden::wave(static_cast<int>(out.size()), {7, 13}), dtype);
    out.push_back(x);
    out.push_back(x.clone().transpose(0, 1));
    out.push_back(x.clone().narrow(1, 2, 5));
    out.push_back(Tensor::empty({0, 3}, {dtype}));
  }
  return out;
}

void expect_same(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(to(got[i], DType::kF64).to_vector<double>(),
              to(want[i], DType::kF64).to_vector<double>())
        << i;
  }
}

TEST(ScaleAll, GivesTheBitsOfMul) {
  // 1e-7 is zero in f16, and 1 / 3 is rounded before it is multiplied.
  for (const double factor : {1 / 65536.0, 1 / 3.0, 1e-9}) {
    std::vector<Tensor> want = tensors();
    for (Tensor& x : want) x.mul_(factor);
    const std::vector<Tensor> got = tensors();
    scale_all("test", got, factor);
    expect_same(got, want);
    const std::vector<Tensor> again = tensors();
    EXPECT_EQ(scale_all_norm_squared("test", again, factor), squared_norm(want));
    expect_same(again, want);
  }
}

TEST(ClampAll, GivesTheBitsOfClamp) {
  std::vector<Tensor> want = tensors();
  for (Tensor& x : want) x = clamp(x, -0.3, 0.7);
  const std::vector<Tensor> got = tensors();
  clamp_all("test", got, -0.3, 0.7);
  expect_same(got, want);
}

TEST(ScaleAll, ScalesWhatIsThereTwiceTwiceAndWhatRepeatsItselfOnce) {
  const Tensor twice = Tensor::full({1001}, 8);
  const Tensor repeats = expand(Tensor::full({1}, 8), {1001});
  scale_all("test", std::vector{twice, repeats, twice}, 0.5);
  EXPECT_EQ(twice.to_vector<float>(), std::vector<float>(1001, 2));
  EXPECT_EQ(repeats.to_vector<float>(), std::vector<float>(1001, 4));
  EXPECT_EQ(scale_all_norm_squared("test", std::vector{repeats}, 0.5), 4004);
  EXPECT_EQ(repeats.to_vector<float>(), std::vector<float>(1001, 2));
  clamp_all("test", std::vector{repeats}, -1, 1);
  EXPECT_EQ(repeats.to_vector<float>(), std::vector<float>(1001, 1));
  scale_all("test", std::vector<Tensor>(), 2);
  EXPECT_EQ(scale_all_norm_squared("test", std::vector<Tensor>(), 2), 0);
}

// A gradient that a graph has saved must not change unnoticed.
TEST(ScaleAll, IsAChangeInPlaceThatBackwardFinds) {
  const auto message = [](auto change) {
    Tensor w = Tensor::ones({3}).set_requires_grad();
    w.set_grad(Tensor::full({3}, 8));
    Tensor other = Tensor::ones({3}).set_requires_grad();
    const Tensor loss = sum(other * w.grad());
    change(w);
    return std::string(error_of([&] { loss.backward(); }));
  };
  EXPECT_THAT(message([](Tensor& w) {
                SGD optimizer({{"w", w}}, {.lr = 1});
                GradScaler().unscale(optimizer);
              }),
              HasSubstr("changed in place by 'GradScaler'"));
  EXPECT_THAT(message([](Tensor& w) { clip_grad_norm_({w}, 1); }),
              HasSubstr("changed in place by 'clip_grad_norm_'"));
  EXPECT_THAT(message([](Tensor& w) { clip_grad_value_({w}, 1); }),
              HasSubstr("changed in place by 'clip_grad_value_'"));
}

}  // namespace
}  // namespace lockstep::nn
