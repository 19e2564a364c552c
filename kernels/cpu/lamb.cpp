#include <cmath>

#include "lockstep/kernels/cpu/optim_lanes.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

// The step before its rate goes to `along`: the rate depends on the norm of all of it.
template <class T>
void direction(const AdamEntry& e, const LambOptions& o, const View& along) {
  using L = Lane<T>;
  const auto t = static_cast<double>(e.step);
  const auto beta1 = static_cast<L>(o.beta1);
  const auto beta2 = static_cast<L>(o.beta2);
  const auto rest1 = static_cast<L>(1 - o.beta1);
  const auto rest2 = static_cast<L>(1 - o.beta2);
  const auto mean_scale = static_cast<L>(1 / (1 - std::pow(o.beta1, t)));
  const auto square_scale = static_cast<L>(1 / std::sqrt(1 - std::pow(o.beta2, t)));
  const auto eps = static_cast<L>(o.eps);
  const auto decay = static_cast<L>(o.weight_decay);
  for_each_lane<T, 5>({&along, &e.exp_avg, &e.exp_avg_sq, &e.parameter, &e.gradient}, 3,
                      [=](const auto& lanes, int64_t n) {
                        vector_loop(n, [=, out = lanes[0], m = lanes[1], v = lanes[2], p = lanes[3],
                                        g = lanes[4]](int64_t i) LOCKSTEP_INLINE_LAMBDA {
                          const L mean = beta1 * m[i] + rest1 * g[i];
                          const L square = beta2 * v[i] + rest2 * g[i] * g[i];
                          m[i] = mean;
                          v[i] = square;
                          out[i] = mean * mean_scale / (sqrt(square) * square_scale + eps) +
                                   decay * p[i];
                        });
                      });
}

template <class T>
void apply(const View& parameter, const View& along, double rate) {
  const auto r = static_cast<Lane<T>>(rate);
  for_each_lane<T, 2>({&parameter, &along}, 1, [=](const auto& lanes, int64_t n) {
    vector_loop(
        n, [=, p = lanes[0], a = lanes[1]](int64_t i) LOCKSTEP_INLINE_LAMBDA { p[i] -= r * a[i]; });
  });
}

}  // namespace

void check_entries(std::span<const AdamEntry> entries, const LambOptions&) {
  for (const AdamEntry& e : entries) {
    check_dense("lamb", e.parameter);
    check_alike("lamb", e.parameter, e.gradient, "a gradient");
    check_alike("lamb", e.parameter, e.exp_avg, "an exp_avg");
    check_alike("lamb", e.parameter, e.exp_avg_sq, "an exp_avg_sq");
    check(e.step >= 1, "lamb", [&] { return str_cat("want steps from 1 on, got ", e.step); });
  }
}

void LambStep::cpu(std::span<const AdamEntry> entries, const LambOptions& options) {
  check_entries(entries, options);
  for (const AdamEntry& e : entries) {
    const std::shared_ptr<void> memory =
        allocate(static_cast<size_t>(e.parameter.numel()) * size_of(e.parameter.dtype));
    View along = e.parameter;
    along.data = memory.get();
    visit_floating(e.parameter.dtype, "lamb", [&](auto tag) {
      using T = typename decltype(tag)::type;
      direction<T>(e, options, along);
      const double weight = std::sqrt(L2NormSquared::cpu({&e.parameter, 1}));
      const double step = std::sqrt(L2NormSquared::cpu({&along, 1}));
      const double trust = weight > 0 && step > 0 ? weight / step : 1;
      apply<T>(e.parameter, along, options.lr * trust);
    });
  }
}

}  // namespace lockstep::kernels
