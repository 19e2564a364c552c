#include "lockstep/core/ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/core/gradcheck.h"
#include "lockstep/core/ops.h"
#include "lockstep/kernels/memory.h"

namespace lockstep {
namespace {

Tensor sample(const Shape& shape, int salt) {
  Tensor x = Tensor::empty(shape, {DType::kF64});
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = std::sin(1.0 + 1.3 * salt + 0.9 * static_cast<double>(i));
  }
  return x.set_requires_grad();
}

Tensors operands() {
  return {sample({2, 2, 3, 4}, 1), sample({2, 2, 5, 4}, 2), sample({2, 2, 5, 3}, 3)};
}

Tensor bool_mask() {
  return Tensor::from<int64_t>({1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1}, {3, 5}) > 0.5;
}

TEST(Attention, GradientsEqualDifferencesToTheSecondOrder) {
  const auto check = [](AttentionOptions options) {
    return gradcheck(
        [options](const Tensors& x) {
          return scaled_dot_product_attention(x[0], x[1], x[2], options);
        },
        operands());
  };
  EXPECT_EQ(check({}), "");
  EXPECT_EQ(check({.is_causal = true, .scale = 0.3}), "");
  EXPECT_EQ(check({.mask = bool_mask()}), "");  // one query sees nothing
  EXPECT_EQ(check({.mask = sample({2, 1, 3, 5}, 4).detach(), .is_causal = true}), "");
}

TEST(Attention, OperandsBroadcastAndAFloatingMaskHasAGradient) {
  const auto f = [](const Tensors& x) {
    return scaled_dot_product_attention(x[0], x[1], x[2], {.mask = x[3]});
  };
  EXPECT_EQ(gradcheck(f, {sample({2, 2, 3, 4}, 1), sample({1, 2, 5, 4}, 2), sample({5, 3}, 3),
                          sample({3, 5}, 4)}),
            "");
}

TEST(Attention, DroppedWeightsAreTheSameInBackward) {
  const auto f = [](const Tensors& x) {
    Generator generator{7, 3};
    const AttentionOptions options = {.dropout_p = 0.4, .generator = &generator};
    return scaled_dot_product_attention(x[0], x[1], x[2], options);
  };
  EXPECT_EQ(gradcheck(f, operands()), "");
}

TEST(Attention, DropoutKeepsTheMeanAndTakesFreshNumbers) {
  const Tensor q = Tensor::zeros({1, 64, 4});
  const Tensor v = Tensor::ones({1, 256, 4});
  const Tensor k = Tensor::zeros({1, 256, 4});
  manual_seed(5);
  const AttentionOptions options = {.dropout_p = 0.25};
  const Tensor a = scaled_dot_product_attention(q, k, v, options);
  const Tensor b = scaled_dot_product_attention(q, k, v, options);
  // Each is a mean over 64 * 256 draws of variance 1/3: 5 standard deviations.
  EXPECT_NEAR(mean(a).item(), 1, 5 * std::sqrt(1.0 / 3 / (64 * 256)));
  EXPECT_GT(max(abs(a - b)).item(), 0);
}

TEST(Attention, IsTheSoftmaxOfProducts) {
  const Tensors x = operands();
  const Tensor weights = softmax(matmul(x[0], x[1].t()) * 0.5, -1);
  const Tensor want = matmul(weights, x[2]).detach();
  const Tensor got = scaled_dot_product_attention(x[0], x[1], x[2]).detach();
  EXPECT_LT(max(abs(got - want)).item(), 1e-14);
}

TEST(Attention, ABlindQueryGetsZerosAndPassesNoGradient) {
  const Tensors x = operands();
  const Tensor y = scaled_dot_product_attention(x[0], x[1], x[2], {.mask = bool_mask()});
  EXPECT_EQ(max(abs(y.select(2, 1).detach())).item(), 0);
  sum(y).backward();
  EXPECT_EQ(max(abs(x[0].grad().select(2, 1))).item(), 0);
  EXPECT_TRUE(std::isfinite(sum(x[1].grad()).item()));
}

// Heads that are split from rows of a projection come back into rows by a view.
TEST(Attention, KeepsTheMemoryOrderOfTheQueries) {
  const Tensor rows = sample({2, 3, 8}, 1).detach();
  const Tensor heads = transpose(reshape(rows, {2, 3, 4, 2}), 1, 2);
  const Tensor y = transpose(scaled_dot_product_attention(heads, heads, heads), 1, 2);
  EXPECT_TRUE(y.is_contiguous());
}

TEST(Attention, KeepsNoMatrixForBackward) {
  const Tensor q = randn({1, 1, 1024, 8}).set_requires_grad();
  const int64_t before = memory_stats().in_use;
  const Tensor y = scaled_dot_product_attention(q, q, q, {.is_causal = true});
  EXPECT_LT(memory_stats().in_use - before, 1 << 18);  // the weights would be 4 MiB
  sum(y).backward();
  EXPECT_EQ(q.grad().shape(), q.shape());
}

TEST(Attention, ErrorsNameTheOpAndTheShapes) {
  const auto error = [](const Tensor& q, const Tensor& k,
                        AttentionOptions options = {}) -> std::string {
    try {
      scaled_dot_product_attention(q, k, k, options);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      return e.what();
    }
    return "";
  };
  const Tensor q = Tensor::ones({2, 3, 4});
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(error(q, Tensor::ones({2, 3, 5})), "[scaled_dot_product_attention]"));
  EXPECT_TRUE(has(error(q, Tensor::ones({2, 3, 5})), "(2, 3, 5)"));
  EXPECT_TRUE(has(error(q, Tensor::ones({3, 3, 4})), "(3)"));
  EXPECT_TRUE(has(error(q, q, {.mask = Tensor::ones({3, 3}, {DType::kI64})}), "i64"));
  EXPECT_TRUE(has(error(q, q, {.mask = bool_mask()}), "(3, 5)"));
  EXPECT_TRUE(has(error(q, q, {.dropout_p = 1.5}), "1.5"));
  EXPECT_TRUE(has(error(q, q.to(DType::kF64)), "f64"));
}

}  // namespace
}  // namespace lockstep
