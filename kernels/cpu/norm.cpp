// Sums of squares over lists of tensors, and changes of all of their elements: one parallel region
// for a list, in chunks that stay in the cache between a change and its squares.
#include <algorithm>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/kernels/change_math.h"
#include "lockstep/kernels/cpu/optim_lanes.h"
#include "lockstep/kernels/optim.h"

namespace lockstep::kernels {
namespace {

// The sum of the squares of n elements at a stride, in the order of memory: the rows of lane_sum
// would take twice the time here, where nothing is in the cache yet.
template <class T>
LOCKSTEP_INLINE double squares(const T* x, int64_t stride, int64_t n) {
  constexpr int64_t kParts = 32;
  double part[kParts] = {};
  const auto square = [](T v) LOCKSTEP_INLINE_LAMBDA {
    const auto wide = static_cast<double>(static_cast<Lane<T>>(v));
    return wide * wide;
  };
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kParts <= n; i += kParts) {
#pragma omp simd
      for (int64_t k = 0; k < kParts; ++k) part[k] += square(x[i + k]);
    }
  }
  for (; i < n; ++i) part[i % kParts] += square(x[i * stride]);
  for (int64_t half = kParts / 2; half > 0; half /= 2) {
    for (int64_t k = 0; k < half; ++k) part[k] += part[k + half];
  }
  return part[0];
}

// x = change(x) for n elements at a stride.
template <class T, class Change>
void change_run(T* x, int64_t stride, int64_t n, const Change& change) {
  if (stride != 1) {
    for (int64_t i = 0; i < n; ++i) {
      T& element = x[i * stride];
      element = static_cast<T>(change(static_cast<Lane<T>>(element)));
    }
  } else if constexpr (!is_reduced_float_v<T>) {
    vector_loop<kLight>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { x[i] = change(x[i]); });
  } else {
    alignas(64) float block[kOptimBlock];
    float* lanes = block;
    for (int64_t first = 0; first < n; first += kOptimBlock) {
      const int64_t count = std::min(kOptimBlock, n - first);
      widen(x + first, lanes, count);
      vector_loop<kLight>(count,
                          [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { lanes[i] = change(lanes[i]); });
      narrow(lanes, x + first, count);
    }
  }
}

struct Chunk {
  size_t view;
  int64_t begin, count;  // in the order of memory
  double squares;
};

// Changes all elements of all views by what change_of(TypeTag<T>{}) gives for their dtypes, and
// returns the sum of the squares of what came out where that is wanted.
template <bool kSums, class MakeChange>
double change_all(std::string_view op, std::span<const View> views, const MakeChange& change_of) {
  std::vector<Walk> walks;
  std::vector<Chunk> chunks;
  int64_t total = 0;
  for (size_t v = 0; v < views.size(); ++v) {
    visit_floating(views[v].dtype, op, [](auto) {});
    walks.emplace_back(views[v], memory_order(views[v]));
    const int64_t count = views[v].numel();
    for (int64_t begin = 0; begin < count; begin += kOptimGrain) {
      chunks.push_back({v, begin, std::min(kOptimGrain, count - begin), 0});
    }
    total += count;
  }
  if (total == 0) return 0;
  const auto size = static_cast<int64_t>(chunks.size());
  const int64_t worth_a_thread = std::max<int64_t>(1, size * kOptimGrain / total);
  parallel_for(size, worth_a_thread, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      Chunk& chunk = chunks[static_cast<size_t>(k)];
      const View& x = views[chunk.view];
      const Walk& walk = walks[chunk.view];
      const int64_t stride = walk.inner_stride();
      visit_floating(x.dtype, op, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const auto change = change_of(tag);
        T* data = x.as<T>();
        for_each_run(walk, chunk.begin, chunk.count, [&](int64_t at, int64_t length) {
          if constexpr (!std::is_same_v<decltype(change), const Unchanged>) {
            change_run(data + at, stride, length, change);
          }
          if constexpr (kSums) {
            simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
              chunk.squares += squares(data + at, stride, length);
            });
          }
        });
      });
    }
  });
  double sum = 0;
  for (const Chunk& chunk : chunks) sum += chunk.squares;
  return sum;
}

auto scaled_by(double factor) {
  return [factor](auto tag) {
    using T = typename decltype(tag)::type;
    return Scaled<Lane<T>>{constant_of<T, Lane<T>>(factor)};
  };
}

}  // namespace

double L2NormSquared::cpu(std::span<const View> views) {
  return change_all<true>("l2_norm", views, [](auto) { return Unchanged(); });
}

void ScaleAll::cpu(std::span<const View> views, double factor) {
  change_all<false>("scale_all", views, scaled_by(factor));
}

double ScaleAllNormSquared::cpu(std::span<const View> views, double factor) {
  return change_all<true>("scale_all", views, scaled_by(factor));
}

void ClampAll::cpu(std::span<const View> views, double low, double high) {
  change_all<false>("clamp_all", views, [=](auto tag) {
    using T = typename decltype(tag)::type;
    return Clamped<Lane<T>>{constant_of<T, Lane<T>>(low), constant_of<T, Lane<T>>(high)};
  });
}

}  // namespace lockstep::kernels
