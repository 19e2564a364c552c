#include "lockstep/core/autograd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "lockstep/core/ops.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

Tensor leaf(std::initializer_list<double> values) {
  Tensor x = Tensor::from(values, {static_cast<int64_t>(values.size())});
  x.set_requires_grad();
  return x;
}

TEST(Autograd, AddsTheGradientsOfEveryPath) {
  Tensor x = leaf({2, 3, 5});
  const Tensor y = x * x + x;
  sum(y * y).backward();
  // d/dx (x^2 + x)^2 = 2 (x^2 + x) (2 x + 1)
  EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(60, 168, 660));
}

TEST(Autograd, AccumulatesOverBackwards) {
  Tensor x = leaf({1, -2});
  sum(x * 3.0).backward();
  sum(x * 4.0).backward();
  EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(7, 7));
}

TEST(Autograd, SumsTheGradientOfABroadcastOperandBack) {
  Tensor row = leaf({1, 2, 3});
  Tensor column = Tensor::from<double>({10, 20}, {2, 1});
  column.set_requires_grad();
  const Tensor weights = Tensor::from<double>({1, 2, 3, 4, 5, 6}, {2, 3});
  sum(row * column * weights).backward();
  EXPECT_THAT(row.grad().to_vector<double>(), ElementsAre(90, 120, 150));
  EXPECT_EQ(column.grad().shape(), (Shape{2, 1}));
  EXPECT_THAT(column.grad().to_vector<double>(), ElementsAre(14, 32));
}

TEST(Autograd, DoesNotRecordUnderNoGrad) {
  Tensor x = leaf({1});
  NoGrad no_grad;
  EXPECT_FALSE((x * 2.0).requires_grad());
}

TEST(Autograd, LeavesGradOfLeavesAloneInGrad) {
  Tensor x = leaf({3});
  Tensor unused = leaf({1});
  const Tensor y = x * x;
  const Tensors gradients = grad({y}, {x, unused}, {}, {.retain_graph = true}, true);
  EXPECT_EQ(gradients[0].item(), 6);
  EXPECT_FALSE(gradients[1].defined());
  EXPECT_FALSE(x.has_grad());
  EXPECT_THAT([&] { grad({y}, {unused}); },
              ThrowsMessage<Error>(HasSubstr("do not depend on input 0")));
}

TEST(Autograd, GivesTheGradientOfAResultInTheMiddle) {
  Tensor x = leaf({3});
  const Tensor middle = x * x;
  const Tensor y = middle * x;
  const Tensor gradient = grad({y}, {middle})[0];
  EXPECT_EQ(gradient.item(), 3);
  middle.backward(gradient);  // what made it was neither run nor released
  EXPECT_EQ(x.grad().item(), 18);
}

// Case 10 of the public reports: the gradient's own derivative.
TEST(Autograd, DifferentiatesAGradient) {
  Tensor p = leaf({1});
  (p * p).backward(Tensor(), {.create_graph = true});
  EXPECT_EQ(p.grad().item(), 2);
  EXPECT_EQ(grad({p.grad()}, {p})[0].item(), 2);
  p.clear_grad();  // holds a graph that holds p
}

TEST(Autograd, DifferentiatesThreeTimes) {
  Tensor x = leaf({2});
  const Tensor y = x * x * x * x;
  const Tensor first = grad({y}, {x}, {}, {.create_graph = true})[0];
  const Tensor second = grad({first}, {x}, {}, {.create_graph = true})[0];
  const Tensor third = grad({second}, {x})[0];
  EXPECT_EQ(first.item(), 32);
  EXPECT_EQ(second.item(), 48);
  EXPECT_EQ(third.item(), 48);
}

TEST(Autograd, SurvivesAChainOfAMillionNodes) {
  Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < 1'000'000; ++i) y = neg(y);
  y.backward();
  EXPECT_EQ(x.grad().item(), 1);
}

// The gradient's own graph is as deep as the graph.
TEST(Autograd, DifferentiatesAndFreesADeepGraphTwice) {
  Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < 200'000; ++i) y = y * 1.0;
  y = y * x;
  const Tensor first = grad({y}, {x}, {}, {.create_graph = true})[0];
  EXPECT_EQ(first.item(), 2);
  y = Tensor();
  EXPECT_EQ(grad({first}, {x})[0].item(), 2);
}

TEST(Autograd, FreesWhatItSavedAsItGoes) {
  Tensor x = leaf({1, 2});
  std::vector<std::weak_ptr<Storage>> saved;
  Tensor y = x;
  std::vector<size_t> alive;  // when each node ran
  for (int i = 0; i < 5; ++i) {
    y = exp(y * 0.5);  // exp saves its result
    saved.push_back(y.impl()->storage);
    y.register_hook([&](const Tensor&) {
      alive.push_back(static_cast<size_t>(std::count_if(
          saved.begin(), saved.end(), [](const auto& storage) { return !storage.expired(); })));
      return Tensor();
    });
  }
  y = sum(y);
  y.backward();
  EXPECT_THAT(alive, ElementsAre(5, 4, 3, 2, 1));
}

TEST(Autograd, FreesADeepGraphThatWasNeverRun) {
  Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < 300'000; ++i) y = y * x;
  y = Tensor();
  EXPECT_EQ(x.impl().use_count(), 1);
}

TEST(Autograd, RunsHooksOnceWithTheWholeGradient) {
  Tensor x = leaf({1, 2});
  int seen = 0;
  int accumulated = 0;
  x.register_hook([&](const Tensor& g) {
    ++seen;
    return g * 10.0;
  });
  x.register_post_accumulate_hook([&](const Tensor& leaf) {
    ++accumulated;
    EXPECT_EQ(leaf.grad().data<double>()[0], 30);
  });
  sum(x + x + x).backward();
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(accumulated, 1);
  EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(30, 30));
}

TEST(Autograd, RunsHooksOfAResult) {
  Tensor x = leaf({1});
  Tensor y = x * 2.0;
  const int64_t id = y.register_hook([](const Tensor& g) { return g * 5.0; });
  (y * 3.0).backward(Tensor(), {.retain_graph = true});
  EXPECT_EQ(x.grad().item(), 30);
  y.remove_hook(id);
  (y * 3.0).backward();
  EXPECT_EQ(x.grad().item(), 36);
}

TEST(Autograd, RunsQueuedCallbacksAtTheEnd) {
  Tensor x = leaf({1});
  Tensor y = leaf({1});
  bool ran = false;
  x.register_post_accumulate_hook([&](const Tensor&) {
    queue_backward_callback([&] {
      ran = true;
      EXPECT_TRUE(x.has_grad());
      EXPECT_TRUE(y.has_grad());
    });
  });
  (x * y).backward();
  EXPECT_TRUE(ran);
  // Callbacks that queue further ones, with captures that live inside of them.
  int64_t total = 0;
  std::function<void(int)> chain = [&](int left) {
    total += left;
    if (left > 0) queue_backward_callback([&chain, left] { chain(left - 1); });
  };
  Tensor z = leaf({1});
  z.register_post_accumulate_hook([&](const Tensor&) { chain(20); });
  z.backward();
  EXPECT_EQ(total, 210);
  EXPECT_THROW(queue_backward_callback([] {}), Error);
}

TEST(Autograd, GivesEachLeafItsOwnGradientMemory) {
  Tensor a = leaf({1, 2});
  Tensor b = leaf({3, 4});
  sum(a + b).backward();
  a.grad().fill_(7);
  EXPECT_THAT(b.grad().to_vector<double>(), ElementsAre(1, 1));
  const Tensor seed = Tensor::from<double>({5, 6}, {2});
  a.clear_grad();
  a.backward(seed);
  a.grad().fill_(0);
  EXPECT_THAT(seed.to_vector<double>(), ElementsAre(5, 6));
}

TEST(Autograd, KeepsAGradientThatNobodyElseHoldsWithoutACopy) {
  Tensor x = leaf({1, 2});
  const void* made = nullptr;
  const Tensor y = record("probe", Tensor::zeros({2}, {DType::kF64}), {x}, [&](const Tensor&) {
    const Tensor g = Tensor::ones({2}, {DType::kF64});
    made = g.view().data;
    return Tensors{g};
  });
  sum(y).backward();
  EXPECT_EQ(x.grad().view().data, made);
}

TEST(Autograd, RecordsOnEachThreadByItself) {
  Tensor x = leaf({2});
  std::vector<std::thread> threads;
  std::vector<double> results(4);
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      Tensor y = x.detach().clone().set_requires_grad();
      bool recorded = false;
      {
        const GradMode mode(i % 2 == 0);
        recorded = (y * y).requires_grad();
      }
      (y * y * static_cast<double>(i)).backward();
      results[i] = recorded == (i % 2 == 0) ? y.grad().item() : -1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(results, ElementsAre(0, 4, 8, 12));
}

// Threads share the parameters, which they only read, and nothing else.
TEST(Autograd, RunsGraphsOnSeveralThreadsOverSharedParameters) {
  const Tensor weight = Tensor::from<double>({1, 2, 3, 4}, {2, 2}).set_requires_grad();
  std::vector<std::vector<double>> results(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      const Tensor x = Tensor::full({3, 2}, static_cast<double>(i), {DType::kF64});
      for (int step = 0; step < 50; ++step) {
        const Tensor y = sum(square(matmul(x, weight)));
        results[i] = grad({y}, {weight})[0].to_vector<double>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < results.size(); ++i) {
    // d/dW sum (x W)^2 = 2 x^T x W, with x^T x = 3 i^2 everywhere.
    const double f = 6 * static_cast<double>(i * i);
    EXPECT_THAT(results[i], ElementsAre(4 * f, 6 * f, 4 * f, 6 * f));
  }
  EXPECT_FALSE(weight.has_grad());
}

// Case 9 of the public reports: a loss that uses one branch only.
TEST(Autograd, LeavesTheGradOfAnUnusedBranchAlone) {
  Tensor used = leaf({1, 2});
  Tensor unused = leaf({3, 4});
  for (int step = 0; step < 6; ++step) {
    const Tensor features = used * 2.0;
    const Tensor other = features * unused;  // made, and not in the loss
    sum(features * features).backward();
    EXPECT_TRUE(used.has_grad());
    EXPECT_FALSE(unused.has_grad());
    EXPECT_TRUE(other.requires_grad());
    used.clear_grad();
  }
}

// Case 26 of the public reports: misuse is an error that names the op or the parameter.

TEST(AutogradMisuse, SecondBackwardThroughReleasedTensorsNamesTheOp) {
  Tensor x = leaf({1, 2});
  const Tensor y = sum(exp(x));
  y.backward();
  EXPECT_THAT([&] { y.backward(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("[sum]"), HasSubstr("retain_graph"))));
}

TEST(AutogradMisuse, RetainGraphAllowsASecondBackward) {
  Tensor x = leaf({0});
  const Tensor y = sum(exp(x));
  y.backward(Tensor(), {.retain_graph = true});
  y.backward();
  EXPECT_EQ(x.grad().item(), 2);
}

TEST(AutogradMisuse, ChangedSavedTensorNamesBothOpsAndVersions) {
  Tensor x = leaf({1, 2});
  Tensor factor = Tensor::from<double>({3, 4}, {2});
  const Tensor y = sum(x * factor);
  factor.add_(factor);
  EXPECT_THAT([&] { y.backward(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("[mul]"), HasSubstr("'add_'"),
                                         HasSubstr("saved at version 0, now at version 1"))));
}

TEST(AutogradMisuse, ChangeThroughAViewIsSeen) {
  Tensor x = leaf({1, 2});
  Tensor factor = Tensor::from<double>({3, 4}, {2});
  const Tensor y = sum(x * factor);
  factor.narrow(0, 1, 1).fill_(0);
  EXPECT_THAT([&] { y.backward(); }, ThrowsMessage<Error>(HasSubstr("'fill_'")));
}

// A result that another op had saved took that op's saved tensor along when it was changed.
TEST(Autograd, InPlaceInTheGraphLeavesWhatAnotherOpSaved) {
  Tensor x = leaf({2});
  Tensor y = x * 3.0;
  const Tensor z = y * y;  // 9 x^2
  y.add_(x);
  z.backward();
  EXPECT_EQ(x.grad().item(), 36);
}

TEST(AutogradMisuse, OtherDataUnderAGraphIsSeen) {
  Tensor x = leaf({2});
  const Tensor z = x * x;
  x.set_data(Tensor::from<double>({5}, {1}));
  EXPECT_THAT([&] { z.backward(); }, ThrowsMessage<Error>(HasSubstr("'set_data'")));
}

TEST(Autograd, SumsCanBeAddedToInPlace) {
  Tensor x = leaf({1, 2});
  Tensor loss = sum(x);
  loss += sum(x * x);
  loss.backward();
  EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(3, 5));
}

TEST(AutogradMisuse, OutputThatNeedsNoGradientSaysSo) {
  const Tensor x = Tensor::ones({1});
  EXPECT_THAT([&] { (x * 2.0).backward(); },
              ThrowsMessage<Error>(HasSubstr("output 0 needs no gradient")));
}

TEST(AutogradMisuse, OutputOfSeveralElementsWantsAGradient) {
  Tensor x = leaf({1, 2});
  EXPECT_THAT([&] { (x * 2.0).backward(); }, ThrowsMessage<Error>(HasSubstr("shape (2)")));
  EXPECT_THAT([&] { (x * 2.0).backward(Tensor::ones({2})); },
              ThrowsMessage<Error>(HasSubstr("one dtype")));
}

TEST(AutogradMisuse, MissingGradientNamesTheParameter) {
  Tensor x = leaf({1});
  x.set_name("features.0.weight");
  EXPECT_THAT([&] { x.grad(); }, ThrowsMessage<Error>(AllOf(HasSubstr("features.0.weight"),
                                                            HasSubstr("no backward reached it"))));
}

TEST(AutogradMisuse, InPlaceOnALeafNamesIt) {
  Tensor x = leaf({1});
  x.set_name("bias");
  EXPECT_THAT([&] { x.add_(x); }, ThrowsMessage<Error>(HasSubstr("bias")));
  EXPECT_THAT([&] { x.fill_(1); }, ThrowsMessage<Error>(HasSubstr("bias")));
}

TEST(Autograd, InPlaceOnAResultGoesOnInTheGraph) {
  Tensor x = leaf({2});
  Tensor y = exp(x);
  const double e = y.item();
  y.mul_(x);  // x exp(x)
  y.add_(x);
  y.backward();
  EXPECT_NEAR(x.grad().item(), e + 2 * e + 1, 1e-12);
  Tensor z = x * 2.0;
  const Tensor view = z.narrow(0, 0, 1);
  EXPECT_THROW(z.add_(x), Error);
}

// A shape that does not fit was reported by the reshape that met it.
TEST(AutogradMisuse, WrongGradientsOfABackwardFunctionNameItsOp) {
  const auto gives = [](Tensors gradients) {
    return [gradients = std::move(gradients)] {
      const Tensor x = leaf({1, 2, 3, 4});
      const Tensor y =
          record("mine", x.detach().clone(), {x}, [gradients](const Tensor&) { return gradients; });
      sum(y).backward();
    };
  };
  const TensorOptions f64 = {DType::kF64};
  EXPECT_THAT(gives({}), ThrowsMessage<Error>(HasSubstr("[mine] backward gave 0 gradients")));
  EXPECT_THAT(gives({Tensor::ones({3}, f64)}), ThrowsMessage<Error>(HasSubstr("[mine]")));
  EXPECT_THAT(gives({Tensor::ones({1}, f64)}),
              ThrowsMessage<Error>(HasSubstr("[mine] backward gave a gradient of shape (1)")));
  EXPECT_THAT(gives({Tensor::ones({4})}),
              ThrowsMessage<Error>(HasSubstr("[mine] backward gave a gradient of dtype f32")));
  EXPECT_NO_THROW(gives({Tensor::ones({2, 4}, f64)})());  // as of a broadcast input
}

}  // namespace
}  // namespace lockstep
