#include "lockstep/core/anomaly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/ops.h"

namespace lockstep {

// Called through the test's symbol table, so they have external linkage and are not inlined.
__attribute__((noinline)) Tensor culprit(const Tensor& x) { return log(x - x); }
__attribute__((noinline)) Tensor innocent(const Tensor& x) { return exp(x) * 3.0; }

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

Tensor leaf(const char* name) {
  Tensor x = Tensor::from<double>({1, 2, 3}, {3}).set_requires_grad();
  x.set_name(name);
  return x;
}

TEST(AnomalyMode, NamesTheOpTheInputAndTheCallThatMadeTheNode) {
  const Tensor x = leaf("weight");
  const AnomalyMode anomaly;
  // sqrt of 0 times 0: infinity times 0.
  const Tensor loss = sum(innocent(x) + sqrt(culprit(x) * 0.0) * 0.0);
  EXPECT_THAT([&] { loss.backward(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("gave NaN"), HasSubstr("of shape (3)"),
                                         HasSubstr("called from"), Not(HasSubstr("innocent")))));
}

TEST(AnomalyMode, ShowsTheFunctionThatCalled) {
  const Tensor x = leaf("weight");
  Tensor y;
  {
    const AnomalyMode anomaly;
    y = culprit(x);  // log(0): the gradient is 1 / 0, and weighs 0 below
  }
  EXPECT_THAT([&] { sum(y).backward(Tensor::scalar(NAN, {DType::kF64})); },
              ThrowsMessage<Error>(AllOf(HasSubstr("backward of 'log'"), HasSubstr("culprit"),
                                         HasSubstr("as had the gradient that it was given"))));
}

TEST(AnomalyMode, NamesALeaf) {
  const Tensor x = leaf("layers.0.weight");
  const AnomalyMode anomaly;
  const Tensor y = x * Tensor::full({3}, INFINITY, {DType::kF64});
  EXPECT_THAT([&] { y.backward(Tensor::zeros({3}, {DType::kF64})); },
              ThrowsMessage<Error>(AllOf(HasSubstr("backward of 'mul'"),
                                         HasSubstr("input 0 (layers.0.weight) of shape (3)"))));
}

TEST(AnomalyMode, LeavesGoodGradientsAndOtherScopesAlone) {
  const Tensor x = leaf("x");
  {
    const AnomalyMode anomaly;
    EXPECT_TRUE(anomaly_enabled());
    sum(innocent(x)).backward();
    const AnomalyMode off(false);
    EXPECT_FALSE(anomaly_enabled());
  }
  EXPECT_FALSE(anomaly_enabled());
  EXPECT_NEAR(x.grad().select(0, 1).item(), 3 * std::exp(2.0), 1e-12);
  sum(culprit(x) * 0.0).backward();  // NaN, and nobody asked
}

}  // namespace
}  // namespace lockstep
