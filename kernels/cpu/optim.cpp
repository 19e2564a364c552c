#include "lockstep/kernels/optim.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/kernels/cpu/optim_lanes.h"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

template <class T>
void sgd_plain(const SgdEntry& e, const SgdOptions& o) {
  const auto lr = static_cast<Lane<T>>(o.lr);
  const auto decay = static_cast<Lane<T>>(o.weight_decay);
  for_each_lane<T, 2>({&e.parameter, &e.gradient}, 1, [=](const auto& lanes, int64_t n) {
    vector_loop(n, [=, p = lanes[0], g = lanes[1]](int64_t i)
                       LOCKSTEP_INLINE_LAMBDA { p[i] -= lr * (g[i] + decay * p[i]); });
  });
}

template <class T>
void sgd_momentum(const SgdEntry& e, const SgdOptions& o) {
  const auto lr = static_cast<Lane<T>>(o.lr);
  const auto decay = static_cast<Lane<T>>(o.weight_decay);
  const auto momentum = static_cast<Lane<T>>(o.momentum);
  // The first step must not read the buffer, which may hold anything, NaN too.
  const bool keep = e.has_momentum;
  const auto share = static_cast<Lane<T>>(keep ? 1 - o.dampening : 1);
  // The step is along own * g + buffer * b.
  const auto own = static_cast<Lane<T>>(o.nesterov ? 1 : 0);
  const auto buffered = static_cast<Lane<T>>(o.nesterov ? o.momentum : 1);
  for_each_lane<T, 3>(
      {&e.parameter, &e.momentum, &e.gradient}, 2, [=](const auto& lanes, int64_t n) {
        vector_loop(
            n, [=, p = lanes[0], b = lanes[1], g = lanes[2]](int64_t i) LOCKSTEP_INLINE_LAMBDA {
              const Lane<T> gradient = g[i] + decay * p[i];
              const Lane<T> old = keep ? momentum * b[i] : Lane<T>{0};
              const Lane<T> next = old + share * gradient;
              b[i] = next;
              p[i] -= lr * (own * gradient + buffered * next);
            });
      });
}

template <class T>
void adam(const AdamEntry& e, const AdamOptions& o) {
  const auto t = static_cast<double>(e.step);
  const auto beta1 = static_cast<Lane<T>>(o.beta1);
  const auto beta2 = static_cast<Lane<T>>(o.beta2);
  const auto rest1 = static_cast<Lane<T>>(1 - o.beta1);
  const auto rest2 = static_cast<Lane<T>>(1 - o.beta2);
  const auto step_size = static_cast<Lane<T>>(o.lr / (1 - std::pow(o.beta1, t)));
  const auto scale = static_cast<Lane<T>>(1 / std::sqrt(1 - std::pow(o.beta2, t)));
  const auto eps = static_cast<Lane<T>>(o.eps);
  const auto keep = static_cast<Lane<T>>(o.decoupled ? 1 - o.lr * o.weight_decay : 1);
  const auto decay = static_cast<Lane<T>>(o.decoupled ? 0 : o.weight_decay);
  for_each_lane<T, 4>(
      {&e.parameter, &e.exp_avg, &e.exp_avg_sq, &e.gradient}, 3, [=](const auto& lanes, int64_t n) {
        vector_loop(n, [=, p = lanes[0], m = lanes[1], v = lanes[2], g = lanes[3]](int64_t i)
                           LOCKSTEP_INLINE_LAMBDA {
                             const Lane<T> gradient = g[i] + decay * p[i];
                             const Lane<T> mean = beta1 * m[i] + rest1 * gradient;
                             const Lane<T> square = beta2 * v[i] + rest2 * gradient * gradient;
                             m[i] = mean;
                             v[i] = square;
                             p[i] = keep * p[i] - step_size * mean / (sqrt(square) * scale + eps);
                           });
      });
}

}  // namespace

void check_entries(std::span<const SgdEntry> entries, const SgdOptions& options) {
  for (const SgdEntry& e : entries) {
    check_dense("sgd", e.parameter);
    check_alike("sgd", e.parameter, e.gradient, "a gradient");
    if (options.momentum != 0) check_alike("sgd", e.parameter, e.momentum, "a momentum buffer");
  }
}

void SgdStep::cpu(std::span<const SgdEntry> entries, const SgdOptions& options) {
  check_entries(entries, options);
  for (const SgdEntry& e : entries) {
    visit_floating(e.parameter.dtype, "sgd", [&](auto tag) {
      using T = typename decltype(tag)::type;
      options.momentum == 0 ? sgd_plain<T>(e, options) : sgd_momentum<T>(e, options);
    });
  }
}

void check_entries(std::span<const AdamEntry> entries, const AdamOptions&) {
  for (const AdamEntry& e : entries) {
    check_dense("adam", e.parameter);
    check_alike("adam", e.parameter, e.gradient, "a gradient");
    check_alike("adam", e.parameter, e.exp_avg, "an exp_avg");
    check_alike("adam", e.parameter, e.exp_avg_sq, "an exp_avg_sq");
    check(e.step >= 1, "adam", [&] { return str_cat("want steps from 1 on, got ", e.step); });
  }
}

void AdamStep::cpu(std::span<const AdamEntry> entries, const AdamOptions& options) {
  check_entries(entries, options);
  for (const AdamEntry& e : entries) {
    visit_floating(e.parameter.dtype, "adam",
                   [&](auto tag) { adam<typename decltype(tag)::type>(e, options); });
  }
}

}  // namespace lockstep::kernels
