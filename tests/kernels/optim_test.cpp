#include "lockstep/kernels/optim.h"

#include <gtest/gtest.h>

#include <string>

#include "arrays.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

const Shape kShapes[] = {{1}, {}, {7, 13}, {3, 5, 3, 3}, {4099}, {0, 3}};

// The dense ones of some_strides.
std::vector<Strides> dense_strides(const Shape& shape) {
  std::vector<Strides> out = some_strides(shape);
  out.pop_back();
  return out;
}

void expect_near(const Array& x, const std::vector<double>& want, double factor) {
  const double eps = epsilon(x.view.dtype);
  for (int64_t i = 0; i < x.numel(); ++i) {
    ASSERT_TRUE(close(x.get(i), want[static_cast<size_t>(i)], factor * eps, factor * eps)) << i;
  }
}

TEST(SgdStep, EveryOptionDtypeAndMemoryOrder) {
  const SgdOptions options[] = {
      {.lr = 0.1},
      {.lr = 0.1, .weight_decay = 0.01},
      {.lr = 0.05, .momentum = 0.9},
      {.lr = 0.05, .momentum = 0.8, .dampening = 0.3, .weight_decay = 0.02},
      {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.02, .nesterov = true},
  };
  for (const SgdOptions& o : options) {
    for (DType dtype : kFloats) {
      for (const Shape& shape : kShapes) {
        for (const Strides& strides : dense_strides(shape)) {
          const Array p = with_strides(sample(dtype, shape), strides);
          const Array b = filled(empty(dtype, shape, strides), [](int64_t) { return kNan; });
          std::vector<double> want = p.values();
          std::vector<double> buffer(want.size());
          for (int step = 0; step < 3; ++step) {
            const Array g = with_strides(sample(dtype, shape, -1, 1, step), strides);
            for (size_t i = 0; i < want.size(); ++i) {
              const double gradient = g.get(static_cast<int64_t>(i)) + o.weight_decay * want[i];
              buffer[i] =
                  step == 0 ? gradient : o.momentum * buffer[i] + (1 - o.dampening) * gradient;
              const double along = o.nesterov ? gradient + o.momentum * buffer[i] : buffer[i];
              want[i] -= o.lr * (o.momentum == 0 ? gradient : along);
            }
            const SgdEntry entry{p.view, g.view, o.momentum == 0 ? View() : b.view, step > 0};
            SgdStep::cpu({&entry, 1}, o);
          }
          expect_near(p, want, 8);
          if (o.momentum != 0) expect_near(b, buffer, 8);
        }
      }
    }
  }
}

TEST(AdamStep, EveryOptionDtypeAndMemoryOrder) {
  const AdamOptions options[] = {
      {.lr = 0.01},
      {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1},
      {.lr = 0.02, .weight_decay = 0.1, .decoupled = true},
  };
  for (const AdamOptions& o : options) {
    for (DType dtype : kFloats) {
      for (const Shape& shape : kShapes) {
        for (const Strides& strides : dense_strides(shape)) {
          const Array p = with_strides(sample(dtype, shape), strides);
          const Array m = filled(empty(dtype, shape, strides), [](int64_t) { return 0; });
          const Array v = filled(empty(dtype, shape, strides), [](int64_t) { return 0; });
          std::vector<double> want = p.values();
          std::vector<double> mean(want.size());
          std::vector<double> square(want.size());
          for (int64_t t = 1; t <= 3; ++t) {
            const Array g = with_strides(sample(dtype, shape, 0.5, 1.5, t), strides);
            for (size_t i = 0; i < want.size(); ++i) {
              double gradient = g.get(static_cast<int64_t>(i));
              if (o.decoupled) {
                want[i] *= 1 - o.lr * o.weight_decay;
              } else {
                gradient += o.weight_decay * want[i];
              }
              mean[i] = o.beta1 * mean[i] + (1 - o.beta1) * gradient;
              square[i] = o.beta2 * square[i] + (1 - o.beta2) * gradient * gradient;
              const auto steps = static_cast<double>(t);
              const double m_hat = mean[i] / (1 - std::pow(o.beta1, steps));
              const double v_hat = square[i] / (1 - std::pow(o.beta2, steps));
              want[i] -= o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
            }
            const AdamEntry entry{p.view, g.view, m.view, v.view, t};
            AdamStep::cpu({&entry, 1}, o);
          }
          expect_near(p, want, 8);
          expect_near(m, mean, 8);
          expect_near(v, square, 8);
        }
      }
    }
  }
}

TEST(Steps, EntriesOfSeveralDtypesInOneCall) {
  const Array a = sample(DType::kF32, {11});
  const Array b = sample(DType::kF64, {3, 2});
  const Array ga = sample(DType::kF32, {11}, -1, 1, 5);
  const Array gb = sample(DType::kF64, {3, 2}, -1, 1, 6);
  const std::vector<double> a_before = a.values();
  const std::vector<double> b_before = b.values();
  const SgdEntry entries[] = {{a.view, ga.view, View(), false}, {b.view, gb.view, View(), false}};
  SgdStep::cpu(entries, {.lr = 0.5});
  for (int64_t i = 0; i < 11; ++i) {
    EXPECT_NEAR(a.get(i), a_before[static_cast<size_t>(i)] - 0.5 * ga.get(i), 1e-6);
  }
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(b.get(i), b_before[static_cast<size_t>(i)] - 0.5 * gb.get(i));
  }
}

TEST(Steps, SeveralThreadsGiveTheSame) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<std::vector<double>> results;
    for (int threads : {1, 3}) {
      set_num_threads(threads);
      const Array p = sample(dtype, {100003});
      const Array g = sample(dtype, {100003}, -1, 1, 2);
      const Array m = sample(dtype, {100003}, -1, 1, 3);
      const Array v = sample(dtype, {100003}, 0, 1, 4);
      const AdamEntry adam{p.view, g.view, m.view, v.view, 9};
      AdamStep::cpu({&adam, 1}, {.weight_decay = 0.1});
      const SgdEntry sgd{p.view, g.view, m.view, true};
      SgdStep::cpu({&sgd, 1}, {.momentum = 0.9});
      results.push_back(p.values());
    }
    set_num_threads(0);
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST(Steps, ViewsThatAreNotDenseOrNotAlikeAreErrorsBeforeAnyStep) {
  const Array p = sample(DType::kF32, {4, 3});
  const std::vector<double> before = p.values();
  const Array gaps = empty(DType::kF32, {4, 3}, {6, 1});
  const Array turned = empty(DType::kF32, {4, 3}, {1, 4});
  const Array wide = empty(DType::kF64, {4, 3});
  const Array flat = empty(DType::kF32, {12});
  const Array whole = empty(DType::kI64, {4, 3});
  for (const Array* bad : {&gaps, &turned, &wide, &flat}) {
    const SgdEntry sgd[] = {{p.view, p.view, p.view, true}, {p.view, bad->view, p.view, true}};
    EXPECT_THROW(SgdStep::cpu(sgd, {.momentum = 0.9}), Error);
    const SgdEntry buffer{p.view, p.view, bad->view, true};
    EXPECT_THROW(SgdStep::cpu({&buffer, 1}, {.momentum = 0.9}), Error);
    for (int which = 0; which < 3; ++which) {
      AdamEntry adam{p.view, p.view, p.view, p.view, 1};
      (which == 0 ? adam.gradient : which == 1 ? adam.exp_avg : adam.exp_avg_sq) = bad->view;
      EXPECT_THROW(AdamStep::cpu({&adam, 1}, {}), Error);
    }
  }
  const AdamEntry with_gaps{gaps.view, gaps.view, gaps.view, gaps.view, 1};
  EXPECT_THROW(AdamStep::cpu({&with_gaps, 1}, {}), Error);
  const SgdEntry integers{whole.view, whole.view, whole.view, true};
  EXPECT_THROW(SgdStep::cpu({&integers, 1}, {}), Error);
  const AdamEntry too_early{p.view, p.view, p.view, p.view, 0};
  EXPECT_THROW(AdamStep::cpu({&too_early, 1}, {}), Error);
  EXPECT_EQ(p.values(), before);
}

}  // namespace
}  // namespace lockstep::kernels
