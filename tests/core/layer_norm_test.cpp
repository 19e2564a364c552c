#include "lockstep/core/ops/layer_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/core/gradcheck.h"
#include "lockstep/core/ops.h"

namespace lockstep {
namespace {

Tensor sample(const Shape& shape, int salt) {
  Tensor x = Tensor::empty(shape, {DType::kF64});
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = std::sin(1.0 + salt + 0.9 * static_cast<double>(i)) + 0.1 * salt;
  }
  return x.set_requires_grad();
}

TEST(LayerNorm, GradientsEqualDifferencesToTheSecondOrder) {
  const auto affine = [](const Tensors& x) { return layer_norm(x[0], {3, 5}, x[1], x[2], 1e-2); };
  EXPECT_EQ(gradcheck(affine, {sample({2, 3, 5}, 1), sample({3, 5}, 2), sample({3, 5}, 3)}), "");
  const auto plain = [](const Tensors& x) { return layer_norm(x[0].t(), {5}); };
  EXPECT_EQ(gradcheck(plain, {sample({5, 3}, 1)}), "");
  const auto one_row = [](const Tensors& x) { return layer_norm(x[0], {7}, x[1]); };
  EXPECT_EQ(gradcheck(one_row, {sample({7}, 1), sample({7}, 2)}), "");
}

TEST(GroupNorm, GradientsEqualDifferencesToTheSecondOrder) {
  const auto groups = [](const Tensors& x) { return group_norm(x[0], 2, x[1], x[2], 1e-2); };
  EXPECT_EQ(gradcheck(groups, {sample({2, 4, 3}, 1), sample({4}, 2), sample({4}, 3)}), "");
  const auto last = [](const Tensors& x) { return group_norm(x[0].channels_last(), 1); };
  EXPECT_EQ(gradcheck(last, {sample({2, 2, 2, 3}, 1)}), "");
}

TEST(InstanceNorm, GradientsEqualDifferencesToTheSecondOrder) {
  const auto f = [](const Tensors& x) { return instance_norm(x[0], x[1], x[2], 1e-2); };
  EXPECT_EQ(gradcheck(f, {sample({2, 3, 5}, 1), sample({3}, 2), sample({3}, 3)}), "");
}

TEST(GroupNorm, OneGroupOfAllIsLayerNormAndOneOfEachIsInstanceNorm) {
  const Tensor x = sample({2, 6, 5}, 1).detach();
  const std::vector<double> all = layer_norm(x, {6, 5}).to_vector<double>();
  EXPECT_EQ(group_norm(x, 1).to_vector<double>(), all);
  const std::vector<double> each = layer_norm(x, {5}).to_vector<double>();
  EXPECT_EQ(group_norm(x, 6).to_vector<double>(), each);
  EXPECT_EQ(instance_norm(x).to_vector<double>(), each);
}

TEST(LayerNorm, EmptyBatchesHaveEmptyResultsAndGradientsOfZero) {
  const Tensor x = Tensor::zeros({0, 4, 3}).set_requires_grad();
  const Tensor weight = Tensor::ones({3}).set_requires_grad();
  const Tensor y = layer_norm(x, {3}, weight);
  EXPECT_EQ(y.shape(), x.shape());
  sum(y + group_norm(x, 2)).backward();
  EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>(3, 0));
}

TEST(LayerNorm, SixteenBitsAreComputedInMore) {
  const Tensor x = sample({5, 33}, 1).detach();
  const std::vector<double> want =
      layer_norm(x.to(DType::kBF16).to(DType::kF64), {33}).to_vector<double>();
  const Tensor got = layer_norm(x.to(DType::kBF16), {33});
  EXPECT_EQ(got.dtype(), DType::kBF16);
  const std::vector<double> values = got.to(DType::kF64).to_vector<double>();
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(values[i], want[i], 0x1p-8 * std::abs(want[i]) + 1e-6) << i;
  }
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

TEST(LayerNorm, ErrorsNameTheOpAndTheShapes) {
  const Tensor x = Tensor::ones({4, 6});
  EXPECT_NE(error_of([&] { layer_norm(x, {5}); })
                .find("[layer_norm] want a floating x whose last "
                      "dimensions are (5), got f32 (4, 6)"),
            std::string::npos);
  EXPECT_NE(error_of([&] { layer_norm(x, {2, 4, 6}); }).find("(2, 4, 6)"), std::string::npos);
  EXPECT_NE(error_of([&] { layer_norm(x, {6}, Tensor::ones({5})); }).find("a weight (6)"),
            std::string::npos);
  EXPECT_NE(error_of([&] { group_norm(x, 4); }).find("[group_norm]"), std::string::npos);
  EXPECT_NE(error_of([&] { group_norm(x, 2, Tensor(), Tensor::ones({3})); }).find("a bias (6)"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              instance_norm(Tensor::ones({2, 3, 1}));
            }).find("(2, 3, 1)"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
