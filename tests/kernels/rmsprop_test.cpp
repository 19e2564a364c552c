#include <gtest/gtest.h>

#include "lockstep/kernels/optim.h"
#include "optim_arrays.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

TEST(RMSpropStep, EveryOptionDtypeAndMemoryOrder) {
  const RMSpropOptions options[] = {
      {},
      {.lr = 0.02, .alpha = 0.8, .eps = 1e-2, .weight_decay = 0.1},
      {.lr = 0.02, .alpha = 0.8, .eps = 1e-2, .momentum = 0.9},
      {.lr = 0.02, .alpha = 0.8, .eps = 1e-1, .centered = true},
      {.lr = 0.02, .alpha = 0.8, .eps = 1e-1, .momentum = 0.5, .centered = true},
  };
  for (const RMSpropOptions& o : options) {
    for_each_parameter([&](DType dtype, const Shape& shape, const Strides& strides) {
      const Array p = with_strides(sample(dtype, shape), strides);
      const Array v = zeros(dtype, shape, strides);
      const Array b = zeros(dtype, shape, strides);
      const Array a = zeros(dtype, shape, strides);
      std::vector<double> want = p.values();
      std::vector<double> square(want.size()), buffer(want.size()), mean(want.size());
      for (int step = 0; step < 3; ++step) {
        const Array g = with_strides(sample(dtype, shape, 0.5, 1.5, step), strides);
        for (size_t i = 0; i < want.size(); ++i) {
          const double gradient = g.get(static_cast<int64_t>(i)) + o.weight_decay * want[i];
          square[i] = o.alpha * square[i] + (1 - o.alpha) * gradient * gradient;
          mean[i] = o.alpha * mean[i] + (1 - o.alpha) * gradient;
          const double variance = square[i] - (o.centered ? mean[i] * mean[i] : 0);
          buffer[i] = o.momentum * buffer[i] + gradient / (std::sqrt(variance) + o.eps);
          want[i] -= o.lr * buffer[i];
        }
        const RMSpropEntry entry{p.view, g.view, v.view, o.momentum != 0 ? b.view : View(),
                                 o.centered ? a.view : View()};
        RMSpropStep::cpu({&entry, 1}, o);
      }
      expect_near(p, want, 8);
      expect_near(v, square, 8);
      if (o.momentum != 0) expect_near(b, buffer, 16);
      if (o.centered) expect_near(a, mean, 8);
    });
  }
}

TEST(AdagradStep, EveryOptionDtypeAndMemoryOrder) {
  const AdagradOptions options[] = {{},
                                    {.lr = 0.1, .lr_decay = 0.2, .weight_decay = 0.1, .eps = 1e-2}};
  for (const AdagradOptions& o : options) {
    for_each_parameter([&](DType dtype, const Shape& shape, const Strides& strides) {
      const Array p = with_strides(sample(dtype, shape), strides);
      const Array s = zeros(dtype, shape, strides);
      std::vector<double> want = p.values();
      std::vector<double> sum(want.size());
      for (int64_t t = 1; t <= 3; ++t) {
        const Array g = with_strides(sample(dtype, shape, 0.5, 1.5, t), strides);
        for (size_t i = 0; i < want.size(); ++i) {
          const double gradient = g.get(static_cast<int64_t>(i)) + o.weight_decay * want[i];
          sum[i] += gradient * gradient;
          const double rate = o.lr / (1 + static_cast<double>(t - 1) * o.lr_decay);
          want[i] -= rate * gradient / (std::sqrt(sum[i]) + o.eps);
        }
        const AdagradEntry entry{p.view, g.view, s.view, t};
        AdagradStep::cpu({&entry, 1}, o);
      }
      expect_near(p, want, 8);
      expect_near(s, sum, 8);
    });
  }
}

TEST(RMSpropStep, RefusesStateOfAnotherShape) {
  const Array p = sample(DType::kF32, {3, 4});
  const Array v = sample(DType::kF32, {4, 3});
  const RMSpropEntry rmsprop{p.view, p.view, v.view, View(), View()};
  EXPECT_THROW(RMSpropStep::cpu({&rmsprop, 1}, {}), Error);
  const AdagradEntry adagrad{p.view, p.view, p.view, 0};
  EXPECT_THROW(AdagradStep::cpu({&adagrad, 1}, {}), Error);
}

}  // namespace
}  // namespace lockstep::kernels
