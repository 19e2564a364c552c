#include <gtest/gtest.h>

#include "lockstep/kernels/optim.h"
#include "optim_arrays.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

TEST(LambStep, EveryOptionDtypeAndMemoryOrder) {
  const LambOptions options[] = {
      {.lr = 0.01}, {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-2, .weight_decay = 0.1}};
  for (const LambOptions& o : options) {
    for_each_parameter([&](DType dtype, const Shape& shape, const Strides& strides) {
      const Array p = with_strides(sample(dtype, shape), strides);
      const Array m = zeros(dtype, shape, strides);
      const Array v = zeros(dtype, shape, strides);
      std::vector<double> want = p.values();
      std::vector<double> mean(want.size()), square(want.size()), along(want.size());
      for (int64_t t = 1; t <= 3; ++t) {
        const Array g = with_strides(sample(dtype, shape, 0.5, 1.5, t), strides);
        const auto steps = static_cast<double>(t);
        double weights = 0, steps_norm = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          const double gradient = g.get(static_cast<int64_t>(i));
          mean[i] = o.beta1 * mean[i] + (1 - o.beta1) * gradient;
          square[i] = o.beta2 * square[i] + (1 - o.beta2) * gradient * gradient;
          along[i] = mean[i] / (1 - std::pow(o.beta1, steps)) /
                         (std::sqrt(square[i] / (1 - std::pow(o.beta2, steps))) + o.eps) +
                     o.weight_decay * want[i];
          weights += want[i] * want[i];
          steps_norm += along[i] * along[i];
        }
        for (size_t i = 0; i < want.size(); ++i) {
          want[i] -= o.lr * std::sqrt(weights / steps_norm) * along[i];
        }
        const AdamEntry entry{p.view, g.view, m.view, v.view, t};
        LambStep::cpu({&entry, 1}, o);
      }
      expect_near(p, want, 8);
      expect_near(m, mean, 8);
      expect_near(v, square, 8);
    });
  }
}

}  // namespace
}  // namespace lockstep::kernels
