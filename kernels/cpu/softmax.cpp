#include "lockstep/kernels/softmax.h"

#include <algorithm>
#include <limits>

#include "lockstep/kernels/cpu/lane_sum.h"
#include "lockstep/kernels/cpu/past_cache.h"
#include "lockstep/kernels/cpu/softmax_columns.h"
#include "lockstep/kernels/cpu/staged.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/text.h"
#include "lockstep/kernels/vector_math.h"

// Rows are contiguous: views of another order are brought to one where the axis is the innermost,
// unless they go by columns (softmax_columns.cpp).
// Blocks of rows that fit the first-level cache are passed over several times; short rows are
// turned into columns there, so that exp runs over whole vectors. While it does, rows to come are
// fetched from memory.
namespace lockstep::kernels {
namespace {

constexpr int64_t kBlock = 2048;   // elements of a block
constexpr int64_t kGrain = 16384;  // elements that are worth a thread
constexpr int64_t kShortRow = 64;  // elements of a row that has no vectors of its own
// Elements of a row whose exponentials a buffer has room for.
constexpr int64_t kPastCacheRow = 4096;

// The view with dimension `axis` moved to the end; a scalar is one row of one element.
View as_rows(const View& x, int64_t axis) {
  View out = x;
  if (x.shape.empty()) {
    out.shape = {1};
    out.strides = {1};
    return out;
  }
  std::rotate(out.shape.begin() + axis, out.shape.begin() + axis + 1, out.shape.end());
  std::rotate(out.strides.begin() + axis, out.strides.begin() + axis + 1, out.strides.end());
  return out;
}

// Calls f(first row, rows) for blocks that cover `rows` rows of `size` elements: as many rows at
// once as a block holds, one at least, and whole vectors of short ones. f runs with the processor's
// widest vectors.
template <class F>
void for_each_block(int64_t rows, int64_t size, const F& f) {
  constexpr int64_t kLanes = 16;
  const int64_t most = std::max<int64_t>(1, kBlock / size);
  const int64_t step = most > kLanes ? most / kLanes * kLanes : most;
  parallel_for(rows, std::max<int64_t>(1, kGrain / size), [&](int64_t begin, int64_t end) {
    simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
      for (int64_t r = begin; r < end; r += step) f(r, std::min(step, end - r));
    });
    end_past_cache();
  });
}

// The largest of n >= 1 values. A NaN need not be seen: it comes back from exp.
template <class T>
LOCKSTEP_INLINE T largest(const T* x, int64_t n) {
  T most = x[0];
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

template <class T>
LOCKSTEP_INLINE T sum(const T* x, int64_t n) {
  return lane_sum<T>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { return x[i]; });
}

template <class T>
LOCKSTEP_INLINE T dot(const T* x, const T* y, int64_t n) {
  return lane_sum<T>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { return x[i] * y[i]; });
}

// The sum of exp(x - most), with no x over most; each goes to put(i, it) too. The n elements from
// `ahead` on, unless it is null, are fetched meanwhile, piece by piece, as memory keeps up. The
// order of additions depends on n alone.
template <class T, class F>
LOCKSTEP_INLINE T exps(const T* x, T most, int64_t n, const T* ahead, const F& put) {
  T total{0};
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(n, first + kBlock);
    alignas(kCacheLine) T sums[kSumLanes] = {};
    for_each_lanes(first, end, [&](int64_t i, int64_t count) LOCKSTEP_INLINE_LAMBDA {
      if (ahead != nullptr) fetch_later(ahead + i, count);
#pragma omp simd
      for (int64_t l = 0; l < count; ++l) {
        const T e = exp_below_70(x[i + l] - most);
        put(i + l, e);
        sums[l] += e;
      }
    });
    fold_lanes(sums);
    total += sums[0];
  }
  return total;
}

// What comes `size` elements after x, unless so many would not stay in the cache until then.
template <class T>
LOCKSTEP_INLINE const T* ahead_of(const T* x, int64_t size) {
  return size <= kAhead ? x + size : nullptr;
}

// A block of short rows as columns, which go through vectors side by side: turned (size, rows) =
// exp(x - most), with most[r] the largest and total[r] the sum of column r.
template <class T>
LOCKSTEP_INLINE void short_exps(const T* x, int64_t rows, int64_t size, T* turned, T* most,
                                T* total) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < size; ++i) turned[i * rows + r] = x[r * size + i];
  }
  std::copy_n(turned, rows, most);
  for (int64_t i = 1; i < size; ++i) {
    const T* row = turned + i * rows;
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) most[r] = row[r] > most[r] ? row[r] : most[r];
  }
  std::fill_n(total, rows, T{0});
  const T* ahead = ahead_of(x, rows * size);
  for (int64_t i = 0; i < size; ++i) {
    T* row = turned + i * rows;
    if (ahead != nullptr) fetch_later(ahead + i * rows, rows);
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) {
      row[r] = exp_below_70(row[r] - most[r]);
      total[r] += row[r];
    }
  }
}

// most[r] = the largest of row r, log_sum[r] = log(sum(exp(row - most))), for a block of rows.
template <class T>
LOCKSTEP_INLINE void log_sums(const T* x, int64_t rows, int64_t size, T* most, T* log_sum) {
  if (size < kShortRow) {
    alignas(kCacheLine) T turned[kBlock];
    short_exps(x, rows, size, turned, most, log_sum);
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = x + r * size;
      const T* ahead = ahead_of(row, std::max(size, kBlock));
      most[r] = largest(row, size);
      log_sum[r] = exps(row, most[r], size, ahead, [](int64_t, T) LOCKSTEP_INLINE_LAMBDA {});
    }
  }
#pragma omp simd
  for (int64_t r = 0; r < rows; ++r) log_sum[r] = log(log_sum[r]);
}

template <class T>
LOCKSTEP_INLINE void short_softmax(const T* x, int64_t rows, int64_t size, T* out) {
  alignas(64) T turned[kBlock];
  T most[kBlock];
  T total[kBlock];
  short_exps(x, rows, size, turned, most, total);
#pragma omp simd
  for (int64_t r = 0; r < rows; ++r) total[r] = T{1} / total[r];
  for (int64_t i = 0; i < size; ++i) {
    T* row = turned + i * rows;
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) row[r] *= total[r];
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < size; ++i) out[r * size + i] = turned[i * rows + r];
  }
}

// A row: its exponentials wait in a buffer where the result goes past the cache, else in the
// result.
template <class T>
LOCKSTEP_INLINE void long_softmax(const T* x, int64_t size, T* out, bool past_cache) {
  alignas(kPage) char buffer[kPastCacheRow * sizeof(T) + kPage];
  T* exponentials = past_cache ? at_place_of(x, reinterpret_cast<T*>(buffer)) : out;
  const T total = exps(x, largest(x, size), size, ahead_of(x, std::max(size, kBlock)),
                       [=](int64_t i, T e) LOCKSTEP_INLINE_LAMBDA { exponentials[i] = e; });
  const T factor = T{1} / total;
  store_values(out, size, past_cache,
               [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { return exponentials[i] * factor; });
}

// out = f of inputs a and b: f(a, b, out, rows, size) is called for blocks of rows along the axis.
template <class T, class F>
void map_rows(const View& a, const View& b, const View& out, int64_t axis, const F& f) {
  const View out_rows = as_rows(out, axis);
  const Strides strides = contiguous_strides(out_rows.shape);
  const StagedInput from_a(as_rows(a, axis), strides);
  const StagedInput from_b = &a == &b ? from_a : StagedInput(as_rows(b, axis), strides);
  const StagedOutput to(out_rows, strides);
  const T* a_data = from_a.as<T>();
  const T* b_data = from_b.as<T>();
  T* out_data = to.as<T>();
  const int64_t size = out_rows.shape.back();
  for_each_block(out.numel() / size, size, [=, &f](int64_t r, int64_t rows) LOCKSTEP_INLINE_LAMBDA {
    f(a_data + r * size, b_data + r * size, out_data + r * size, rows, size);
  });
  to.finish();
}

// Throws unless every target is a class or ignored.
void check_targets(const View& targets, int64_t ignore_index, int64_t classes) {
  const auto* t = targets.as<int64_t>();
  for (int64_t n = 0; n < targets.shape[0]; ++n) {
    const int64_t target = t[n * targets.strides[0]];
    check((target >= 0 && target < classes) || target == ignore_index, "cross_entropy", [&] {
      return str_cat("want targets in [0, ", classes, ") or ", ignore_index,
                     ", the one to ignore; row ", n, " has ", target);
    });
  }
}

}  // namespace

void Softmax::cpu(const View& x, const View& y, int64_t axis) {
  if (y.numel() == 0) return;
  if (runs_in_columns(x, axis)) return softmax_columns(x, y, axis);
  visit_lane(y.dtype, "softmax", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr auto kSize = static_cast<int64_t>(sizeof(T));
    const int64_t bytes = y.numel() * kSize;
    map_rows<T>(x, x, y, axis,
                [=](const T* in, const T*, T* out, int64_t rows, int64_t size)
                    LOCKSTEP_INLINE_LAMBDA {
                      if (size < kShortRow) return short_softmax(in, rows, size, out);
                      const bool past_cache =
                          size <= kPastCacheRow && goes_past_cache(out, size * kSize, bytes);
                      for (int64_t r = 0; r < rows; ++r) {
                        long_softmax(in + r * size, size, out + r * size, past_cache);
                      }
                    });
  });
}

void SoftmaxBackward::cpu(const View& g, const View& y, const View& gx, int64_t axis) {
  if (gx.numel() == 0) return;
  if (runs_in_columns(y, axis)) return softmax_backward_columns(g, y, gx, axis);
  visit_lane(gx.dtype, "softmax_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    map_rows<T>(g, y, gx, axis,
                [](const T* gs, const T* ys, T* out, int64_t rows, int64_t size)
                    LOCKSTEP_INLINE_LAMBDA {
                      for (int64_t r = 0; r < rows; ++r) {
                        const int64_t at = r * size;
                        const T s = dot(gs + at, ys + at, size);
#pragma omp simd
                        for (int64_t i = at; i < at + size; ++i) out[i] = ys[i] * (gs[i] - s);
                      }
                    });
  });
}

void LogSoftmax::cpu(const View& x, const View& y, int64_t axis) {
  if (y.numel() == 0) return;
  if (runs_in_columns(x, axis)) return log_softmax_columns(x, y, axis);
  visit_lane(y.dtype, "log_softmax", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr auto kSize = static_cast<int64_t>(sizeof(T));
    const int64_t bytes = y.numel() * kSize;
    map_rows<T>(
        x, x, y, axis,
        [=](const T* in, const T*, T* out, int64_t rows, int64_t size) LOCKSTEP_INLINE_LAMBDA {
          T most[kBlock];
          T log_sum[kBlock];
          log_sums(in, rows, size, most, log_sum);
          const bool past_cache = goes_past_cache(out, size * kSize, bytes);
          for (int64_t r = 0; r < rows; ++r) {
            const T* from = in + r * size;
            const T m = most[r];
            const T l = log_sum[r];
            store_values(out + r * size, size, past_cache,
                         [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { return (from[i] - m) - l; });
          }
        });
  });
}

void LogSoftmaxBackward::cpu(const View& g, const View& y, const View& gx, int64_t axis) {
  if (gx.numel() == 0) return;
  if (runs_in_columns(y, axis)) return log_softmax_backward_columns(g, y, gx, axis);
  visit_lane(gx.dtype, "log_softmax_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    map_rows<T>(g, y, gx, axis,
                [](const T* gs, const T* ys, T* out, int64_t rows, int64_t size)
                    LOCKSTEP_INLINE_LAMBDA {
                      for (int64_t r = 0; r < rows; ++r) {
                        const int64_t at = r * size;
                        const T s = sum(gs + at, size);
#pragma omp simd
                        for (int64_t i = at; i < at + size; ++i) out[i] = gs[i] - exp(ys[i]) * s;
                      }
                    });
  });
}

void LogSumExp::cpu(const View& x, const View& y, int64_t axis) {
  if (y.numel() == 0) return;
  visit_lane(y.dtype, "logsumexp", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const View lines = as_rows(x, axis);
    const View results = as_rows(y, axis);
    const StagedInput from(lines, contiguous_strides(lines.shape));
    const StagedOutput to(results, contiguous_strides(results.shape));
    const T* data = from.as<T>();
    T* out = to.as<T>();
    const int64_t size = lines.shape.back();
    for_each_block(y.numel(), size, [=](int64_t first, int64_t rows) LOCKSTEP_INLINE_LAMBDA {
      const T* block = data + first * size;
      T most[kBlock];
      T log_sum[kBlock];
      log_sums(block, rows, size, most, log_sum);
      for (int64_t r = 0; r < rows; ++r) {
        out[first + r] = most[r] + log_sum[r];
        if (abs(most[r]) < std::numeric_limits<T>::infinity()) continue;
        const T* row = block + r * size;  // relative to an infinity there was nothing but NaN
        out[first + r] = most[r];
        for (int64_t i = 0; i < size; ++i) {
          if (row[i] != row[i]) out[first + r] = row[i];
        }
      }
    });
    to.finish();
  });
}

void CrossEntropy::cpu(const View& logits, const View& targets, int64_t ignore_index,
                       const View& losses, const View& lse) {
  const int64_t size = logits.shape[1];
  check_targets(targets, ignore_index, size);
  visit_lane(logits.dtype, "cross_entropy", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const StagedInput from(logits, contiguous_strides(logits.shape));
    const StagedOutput to_losses(losses, {1});
    const StagedOutput to_lse(lse, {1});
    const T* x = from.as<T>();
    T* loss = to_losses.as<T>();
    T* out = to_lse.as<T>();
    const auto* t = targets.as<int64_t>();
    const int64_t step = targets.strides[0];
    if (size == 0) {  // every row is ignored
      std::fill_n(loss, losses.numel(), T{0});
      std::fill_n(out, lse.numel(), -std::numeric_limits<T>::infinity());
    } else {
      for_each_block(
          logits.shape[0], size, [=](int64_t first, int64_t rows) LOCKSTEP_INLINE_LAMBDA {
            T most[kBlock];
            T log_sum[kBlock];
            log_sums(x + first * size, rows, size, most, log_sum);
            for (int64_t r = 0; r < rows; ++r) {
              const int64_t n = first + r;
              const int64_t target = t[n * step];
              out[n] = most[r] + log_sum[r];
              // The difference to the largest first: less is lost where logits are large.
              loss[n] =
                  target == ignore_index ? T{0} : log_sum[r] - (x[n * size + target] - most[r]);
            }
          });
    }
    to_losses.finish();
    to_lse.finish();
  });
}

void CrossEntropyBackward::cpu(const View& logits, const View& targets, int64_t ignore_index,
                               const View& lse, const View& g, const View& glogits) {
  const int64_t size = logits.shape[1];
  check_targets(targets, ignore_index, size);
  if (logits.numel() == 0) return;
  visit_lane(logits.dtype, "cross_entropy_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Strides strides = contiguous_strides(logits.shape);
    const StagedInput from(logits, strides);
    const StagedInput from_lse(lse, {1});
    const StagedInput from_g(g, {1});
    const StagedOutput to(glogits, strides);
    const T* x = from.as<T>();
    const T* l = from_lse.as<T>();
    const T* gs = from_g.as<T>();
    T* out = to.as<T>();
    const auto* t = targets.as<int64_t>();
    const int64_t step = targets.strides[0];
    for_each_block(logits.shape[0], size, [=](int64_t first, int64_t rows) LOCKSTEP_INLINE_LAMBDA {
      for (int64_t n = first; n < first + rows; ++n) {
        const T log_sum = l[n];
#pragma omp simd
        for (int64_t i = n * size; i < (n + 1) * size; ++i) out[i] = x[i] - log_sum;
      }
#pragma omp simd
      for (int64_t i = first * size; i < (first + rows) * size; ++i) out[i] = exp(out[i]);
      for (int64_t n = first; n < first + rows; ++n) {
        T* row = out + n * size;
        const int64_t target = t[n * step];
        if (target == ignore_index) {
          std::fill_n(row, size, T{0});
          continue;
        }
        row[target] -= T{1};
        const T factor = gs[n];
#pragma omp simd
        for (int64_t i = 0; i < size; ++i) row[i] *= factor;
      }
    });
    to.finish();
  });
}

}  // namespace lockstep::kernels
