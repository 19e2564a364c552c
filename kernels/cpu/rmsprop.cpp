#include "lockstep/kernels/cpu/optim_lanes.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

// Lanes: the parameter, square_avg, then momentum_buffer and grad_avg where there are any, and the
// gradient.
template <class T, bool kMomentum, bool kCentered>
void rmsprop(const RMSpropEntry& e, const RMSpropOptions& o) {
  constexpr size_t kBuffer = 2;
  constexpr size_t kMean = 2 + size_t{kMomentum};
  constexpr size_t kGradient = kMean + size_t{kCentered};
  std::array<const View*, kGradient + 1> views = {&e.parameter, &e.square_avg};
  if constexpr (kMomentum) views[kBuffer] = &e.momentum_buffer;
  if constexpr (kCentered) views[kMean] = &e.grad_avg;
  views[kGradient] = &e.gradient;
  using L = Lane<T>;
  const auto lr = static_cast<L>(o.lr);
  const auto alpha = static_cast<L>(o.alpha);
  const auto rest = static_cast<L>(1 - o.alpha);
  const auto eps = static_cast<L>(o.eps);
  const auto decay = static_cast<L>(o.weight_decay);
  const auto momentum = static_cast<L>(o.momentum);
  for_each_lane<T, kGradient + 1>(views, kGradient, [=](const auto& lanes, int64_t n) {
    vector_loop(n, [=, p = lanes[0], v = lanes[1], b = lanes[kMomentum ? kBuffer : 0],
                    a = lanes[kCentered ? kMean : 0], g = lanes[kGradient]](int64_t i)
                       LOCKSTEP_INLINE_LAMBDA {
                         const L gradient = g[i] + decay * p[i];
                         const L square = alpha * v[i] + rest * gradient * gradient;
                         v[i] = square;
                         L variance = square;
                         if constexpr (kCentered) {
                           const L mean = a[i] + rest * (gradient - a[i]);
                           a[i] = mean;
                           variance = square - mean * mean;
                         }
                         L along = gradient / (sqrt(variance) + eps);
                         if constexpr (kMomentum) {
                           along = momentum * b[i] + along;
                           b[i] = along;
                         }
                         p[i] -= lr * along;
                       });
  });
}

template <class T>
void adagrad(const AdagradEntry& e, const AdagradOptions& o) {
  using L = Lane<T>;
  const auto rate = static_cast<L>(o.lr / (1 + static_cast<double>(e.step - 1) * o.lr_decay));
  const auto eps = static_cast<L>(o.eps);
  const auto decay = static_cast<L>(o.weight_decay);
  for_each_lane<T, 3>({&e.parameter, &e.sum, &e.gradient}, 2, [=](const auto& lanes, int64_t n) {
    vector_loop(n, [=, p = lanes[0], s = lanes[1], g = lanes[2]](int64_t i) LOCKSTEP_INLINE_LAMBDA {
      const L gradient = g[i] + decay * p[i];
      const L sum = s[i] + gradient * gradient;
      s[i] = sum;
      p[i] -= rate * gradient / (sqrt(sum) + eps);
    });
  });
}

}  // namespace

void check_entries(std::span<const RMSpropEntry> entries, const RMSpropOptions& options) {
  for (const RMSpropEntry& e : entries) {
    check_dense("rmsprop", e.parameter);
    check_alike("rmsprop", e.parameter, e.gradient, "a gradient");
    check_alike("rmsprop", e.parameter, e.square_avg, "a square_avg");
    if (options.momentum != 0) {
      check_alike("rmsprop", e.parameter, e.momentum_buffer, "a momentum_buffer");
    }
    if (options.centered) check_alike("rmsprop", e.parameter, e.grad_avg, "a grad_avg");
  }
}

void RMSpropStep::cpu(std::span<const RMSpropEntry> entries, const RMSpropOptions& options) {
  check_entries(entries, options);
  for (const RMSpropEntry& e : entries) {
    visit_floating(e.parameter.dtype, "rmsprop", [&](auto tag) {
      using T = typename decltype(tag)::type;
      if (options.momentum != 0) {
        options.centered ? rmsprop<T, true, true>(e, options) : rmsprop<T, true, false>(e, options);
      } else {
        options.centered ? rmsprop<T, false, true>(e, options)
                         : rmsprop<T, false, false>(e, options);
      }
    });
  }
}

void check_entries(std::span<const AdagradEntry> entries, const AdagradOptions&) {
  for (const AdagradEntry& e : entries) {
    check_dense("adagrad", e.parameter);
    check_alike("adagrad", e.parameter, e.gradient, "a gradient");
    check_alike("adagrad", e.parameter, e.sum, "a sum");
    check(e.step >= 1, "adagrad", [&] { return str_cat("want steps from 1 on, got ", e.step); });
  }
}

void AdagradStep::cpu(std::span<const AdagradEntry> entries, const AdagradOptions& options) {
  check_entries(entries, options);
  for (const AdagradEntry& e : entries) {
    visit_floating(e.parameter.dtype, "adagrad",
                   [&](auto tag) { adagrad<typename decltype(tag)::type>(e, options); });
  }
}

}  // namespace lockstep::kernels
