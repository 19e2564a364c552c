// Tensor's methods that change it, out of the graph and in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

Tensor values() { return Tensor::from<double>({0.5, -2, 3, 1.5, 0.25, 4}, {2, 3}); }

struct Form {
  const char* name;
  std::function<void(Tensor&)> in_place;
  std::function<Tensor(const Tensor&)> function;
};

std::vector<Form> forms() {
  const Tensor row = Tensor::from<double>({2, 3, -1}, {3});
  const Tensor mask = Tensor::from<bool>({true, false, true}, {3});
  return {{"add_", [=](Tensor& x) { x.add_(row); }, [=](const Tensor& x) { return x + row; }},
          {"add_ alpha", [=](Tensor& x) { x.add_(row, -2); },
           [=](const Tensor& x) { return x - row * 2.0; }},
          {"+= number", [](Tensor& x) { x += 1.5; }, [](const Tensor& x) { return x + 1.5; }},
          {"sub_", [=](Tensor& x) { x.sub_(row); }, [=](const Tensor& x) { return x - row; }},
          {"-=", [=](Tensor& x) { x -= row; }, [=](const Tensor& x) { return x - row; }},
          {"mul_", [=](Tensor& x) { x.mul_(row); }, [=](const Tensor& x) { return x * row; }},
          {"*= itself", [=](Tensor& x) { x *= x; }, [=](const Tensor& x) { return x * x; }},
          {"div_", [=](Tensor& x) { x.div_(row); }, [=](const Tensor& x) { return x / row; }},
          {"/= number", [](Tensor& x) { x /= 4; }, [](const Tensor& x) { return x / 4.0; }},
          {"neg_", [](Tensor& x) { x.neg_(); }, [](const Tensor& x) { return -x; }},
          {"exp_", [](Tensor& x) { x.exp_(); }, [](const Tensor& x) { return exp(x); }},
          {"relu_", [](Tensor& x) { x.relu_(); }, [](const Tensor& x) { return relu(x); }},
          {"sigmoid_", [](Tensor& x) { x.sigmoid_(); }, [](const Tensor& x) { return sigmoid(x); }},
          {"tanh_", [](Tensor& x) { x.tanh_(); }, [](const Tensor& x) { return tanh(x); }},
          {"clamp_", [](Tensor& x) { x.clamp_(-1, 2); },
           [](const Tensor& x) { return clamp(x, -1, 2); }},
          {"masked_fill_", [=](Tensor& x) { x.masked_fill_(mask, 7); },
           [=](const Tensor& x) { return masked_fill(x, mask, 7); }},
          {"index_put_",
           [=](Tensor& x) {
             x.index_put_({1, Slice(0, 2)}, row.narrow(0, 1, 2));
           },
           [=](const Tensor& x) {
             const Tensor parts[] = {row.narrow(0, 1, 2), x.select(0, 1).narrow(0, 2, 1)};
             const Tensor rows[] = {x.select(0, 0), cat(parts)};
             return stack(rows);
           }},
          {"index_put_ mask", [](Tensor& x) { x.index_put_({lt(x, 1.0)}, 9); },
           [](const Tensor& x) { return where(lt(x, 1.0), 9.0, x); }}};
}

TEST(InPlace, GivesWhatTheFunctionGivesInTheSameMemory) {
  for (const Form& form : forms()) {
    Tensor x = values();
    const Tensor view = x.select(0, 1);
    const std::vector<double> want = form.function(x).to_vector<double>();
    const uint64_t version = x.version();
    form.in_place(x);
    EXPECT_EQ(x.to_vector<double>(), want) << form.name;
    EXPECT_EQ(view.to_vector<double>(), x.select(0, 1).to_vector<double>()) << form.name;
    EXPECT_GT(x.version(), version) << form.name;
  }
}

TEST(InPlace, IsRecordedInTheGraph) {
  for (const Form& form : forms()) {
    const auto gradient = [&](bool in_place) {
      Tensor x = values().set_requires_grad();
      Tensor y = x * x;
      const Tensor before = y;  // another handle to the same result
      if (in_place) {
        form.in_place(y);
      } else {
        y = form.function(y);
      }
      return grad({sum(y * Tensor::from<double>({1, 2, 3}, {3}))}, {x})[0].to_vector<double>();
    };
    EXPECT_EQ(gradient(true), gradient(false)) << form.name;
  }
}

TEST(InPlace, OfALeafInTheGraphIsAnErrorThatNamesIt) {
  for (const Form& form : forms()) {
    Tensor x = values().set_requires_grad();
    x.set_name("weight");
    EXPECT_THAT([&] { form.in_place(x); }, ThrowsMessage<Error>(HasSubstr("weight requires")))
        << form.name;
    const NoGrad no_grad;
    EXPECT_NO_THROW(form.in_place(x)) << form.name;
  }
}

TEST(InPlace, ChangesThatBackwardNeedsUndoneAreSeen) {
  const Tensor x = values().set_requires_grad();
  Tensor factor = values();
  const Tensor y = sum(x * factor);
  factor.clamp_(0, 1);
  EXPECT_THAT([&] { y.backward(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("[mul]"), HasSubstr("'clamp_'"))));
}

TEST(InPlace, TakesAValueThatRequiresAGradient) {
  Tensor x = Tensor::zeros({2, 3}, {DType::kF64});
  const Tensor v = Tensor::from<double>({1, 2}, {2}).set_requires_grad();
  x.index_put_({Slice(), 1}, v * v);
  sum(x * x).backward();
  EXPECT_THAT(x.to_vector<double>(), ElementsAre(0, 1, 0, 0, 4, 0));
  EXPECT_THAT(v.grad().to_vector<double>(), ElementsAre(4, 32));  // d v^4
}

TEST(InPlace, RefusesWhatDoesNotBroadcast) {
  Tensor x = values();
  EXPECT_THAT(
      [&] {
        x.div_(Tensor::zeros({4, 2, 3}, {DType::kF64}));
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("[div_]"), HasSubstr("(2, 3)"))));
  EXPECT_THAT(
      [&] {
        x.masked_fill_(Tensor::from<bool>({true, false}, {2}), 1);
      },
      ThrowsMessage<Error>(HasSubstr("[masked_fill]")));
  EXPECT_THAT([&] { x.sub_(Tensor::zeros({3})); }, ThrowsMessage<Error>(HasSubstr("f32")));
}

}  // namespace
}  // namespace lockstep
