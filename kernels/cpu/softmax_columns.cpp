// Columns are taken in strips, row by row, so that memory is read and written in runs of several
// lines. A strip goes through a tile of its own, since its rows are often so many bytes apart that
// they drive each other out of the cache.

#include "lockstep/kernels/cpu/softmax_columns.h"

#include <algorithm>

#include "lockstep/kernels/cpu/lane_sum.h"
#include "lockstep/kernels/cpu/past_cache.h"
#include "lockstep/kernels/cpu/staged.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

constexpr int64_t kFewColumns = 16;
// Columns of a strip: of 4096 rows, 64 columns of f32 took 30 ms, 16 took 50, and 256 took 47.
constexpr int64_t kLeast = 64;
constexpr int64_t kMost = 512;
constexpr int64_t kTileBytes = 1 << 18;  // of a strip that may be wider than kLeast
constexpr int64_t kRows = 8;             // whose exponentials are made and added together
constexpr int64_t kGrain = 16384;        // elements that are worth a thread

// `columns` columns of `rows` elements each. Rows are `step` elements apart in a, b and out.
template <class T>
struct Strip {
  const T* a;
  const T* b;
  T* out;
  int64_t rows;
  int64_t columns;
  int64_t step;
  bool next_is_beside;  // the strip that follows starts where this one's rows end
  bool past_cache;

  // Fetches `count` rows from `first` on of the next strip's `a` into the cache.
  LOCKSTEP_INLINE void fetch_next(int64_t first, int64_t count) const {
    if (!next_is_beside) return;
    for (int64_t r = first; r < first + count; ++r) {
      const T* row = a + r * step + columns;
      for (int64_t c = 0; c < columns; c += kCacheLine / static_cast<int64_t>(sizeof(T))) {
        __builtin_prefetch(row + c);
      }
    }
  }

  // Row r of out = f(c) for each column.
  template <class F>
  LOCKSTEP_INLINE void put(int64_t r, const F& f) const {
    store_values(out + r * step, columns, past_cache, f);
  }
};

// Calls f(strip, tile) for strips that cover all columns; a tile has room for a strip. f runs with
// the processor's widest vectors.
template <class T, class F>
void for_each_strip(const View& a, const View& b, const View& out, int64_t axis, const F& f) {
  const Strides strides = contiguous_strides(out.shape);
  const StagedInput from_a(a, strides);
  const StagedInput from_b = &a == &b ? from_a : StagedInput(b, strides);
  const StagedOutput to(out, strides);
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const auto d = static_cast<size_t>(axis);
  const int64_t rows = out.shape[d];
  const int64_t step = strides[d];
  const int64_t fitting = kTileBytes / kSize / rows / kLeast * kLeast;
  const int64_t widest = std::min(step, std::clamp(fitting, kLeast, kMost));
  const int64_t in_row = (step + widest - 1) / widest;
  const int64_t strips = out.numel() / (rows * step) * in_row;
  const bool past_cache = step % (kCacheLine / kSize) == 0 &&
                          goes_past_cache(to.as<T>(), widest * kSize, out.numel() * kSize);
  const int64_t grain = std::max<int64_t>(1, kGrain / (rows * widest));
  parallel_for(strips, grain, [&](int64_t begin, int64_t end) {
    const auto memory = allocate(static_cast<size_t>(rows * widest * kSize));
    T* tile = static_cast<T*>(memory.get());
    simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t first = k % in_row * widest;
        const int64_t at = k / in_row * rows * step + first;
        const int64_t columns = std::min(widest, step - first);
        const bool beside = k + 1 < end && step - first >= 2 * widest;
        f(Strip<T>{from_a.as<T>() + at, from_b.as<T>() + at, to.as<T>() + at, rows, columns, step,
                   beside, past_cache},
          tile);
      }
    });
    end_past_cache();
  });
  to.finish();
}

// tile = the strip of `a`, most[c] = the largest of column c. A NaN need not be seen: it comes back
// from exp.
template <class T>
LOCKSTEP_INLINE void load(const Strip<T>& s, T* tile, T* most) {
  std::copy_n(s.a, s.columns, most);
  for (int64_t r = 0; r < s.rows; ++r) {
    const T* from = s.a + r * s.step;
    T* row = tile + r * s.columns;
#pragma omp simd
    for (int64_t c = 0; c < s.columns; ++c) {
      const T x = from[c];
      row[c] = x;
      most[c] = x > most[c] ? x : most[c];
    }
  }
}

// total[c] = the sum of exp(x - most[c]) over column c of the tile. kRows rows of exponentials at a
// time stand in exps(first row), while the next strip is fetched.
template <class T, class F>
LOCKSTEP_INLINE void sum_exps(const Strip<T>& s, const T* tile, const T* most, T* total,
                              const F& exps) {
  std::fill_n(total, s.columns, T{0});
  for (int64_t first = 0; first < s.rows; first += kRows) {
    const int64_t count = std::min(kRows, s.rows - first);
    s.fetch_next(first, count);
    T* to = exps(first);
    for (int64_t r = 0; r < count; ++r) {
      const T* from = tile + (first + r) * s.columns;
      T* row = to + r * s.columns;
#pragma omp simd
      for (int64_t c = 0; c < s.columns; ++c) row[c] = exp_below_70(from[c] - most[c]);
    }
    add_rows(count, s.columns, total,
             [=](int64_t i, int64_t) LOCKSTEP_INLINE_LAMBDA { return to[i]; });
  }
}

}  // namespace

bool runs_in_columns(const View& x, int64_t axis) {
  if (x.shape.empty()) return false;
  int64_t beside = 1;
  for (size_t d = static_cast<size_t>(axis) + 1; d < x.shape.size(); ++d) beside *= x.shape[d];
  return beside >= kFewColumns && x.strides[static_cast<size_t>(axis)] != 1;
}

void softmax_columns(const View& x, const View& y, int64_t axis) {
  visit_lane(y.dtype, "softmax", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_strip<T>(x, x, y, axis, [](const Strip<T>& s, T* tile) LOCKSTEP_INLINE_LAMBDA {
      T most[kMost];
      T total[kMost];
      load(s, tile, most);
      sum_exps(s, tile, most, total,
               [&](int64_t r) LOCKSTEP_INLINE_LAMBDA { return tile + r * s.columns; });
#pragma omp simd
      for (int64_t c = 0; c < s.columns; ++c) total[c] = T{1} / total[c];
      for (int64_t r = 0; r < s.rows; ++r) {
        const T* row = tile + r * s.columns;
        s.put(r, [&](int64_t c) LOCKSTEP_INLINE_LAMBDA { return row[c] * total[c]; });
      }
    });
  });
}

void log_softmax_columns(const View& x, const View& y, int64_t axis) {
  visit_lane(y.dtype, "log_softmax", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_strip<T>(x, x, y, axis, [](const Strip<T>& s, T* tile) LOCKSTEP_INLINE_LAMBDA {
      T most[kMost];
      T log_sum[kMost];
      alignas(kCacheLine) T exps[kRows * kMost];
      load(s, tile, most);
      sum_exps(s, tile, most, log_sum, [&](int64_t) LOCKSTEP_INLINE_LAMBDA { return exps; });
#pragma omp simd
      for (int64_t c = 0; c < s.columns; ++c) log_sum[c] = log(log_sum[c]);
      for (int64_t r = 0; r < s.rows; ++r) {
        const T* row = tile + r * s.columns;
        s.put(r, [&](int64_t c) LOCKSTEP_INLINE_LAMBDA { return (row[c] - most[c]) - log_sum[c]; });
      }
    });
  });
}

void softmax_backward_columns(const View& g, const View& y, const View& gx, int64_t axis) {
  visit_lane(gx.dtype, "softmax_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_strip<T>(g, y, gx, axis, [](const Strip<T>& s, T*) LOCKSTEP_INLINE_LAMBDA {
      T dot[kMost] = {};
      add_rows_apart(s.rows, s.step, s.columns, dot,
                     [gs = s.a, ys = s.b](int64_t i, int64_t)
                         LOCKSTEP_INLINE_LAMBDA { return gs[i] * ys[i]; });
      for (int64_t r = 0; r < s.rows; ++r) {
        const T* gs = s.a + r * s.step;
        const T* ys = s.b + r * s.step;
        s.put(r, [&](int64_t c) LOCKSTEP_INLINE_LAMBDA { return ys[c] * (gs[c] - dot[c]); });
      }
    });
  });
}

void log_softmax_backward_columns(const View& g, const View& y, const View& gx, int64_t axis) {
  visit_lane(gx.dtype, "log_softmax_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_strip<T>(g, y, gx, axis, [](const Strip<T>& s, T*) LOCKSTEP_INLINE_LAMBDA {
      T sum[kMost] = {};
      add_rows_apart(s.rows, s.step, s.columns, sum,
                     [gs = s.a](int64_t i, int64_t) LOCKSTEP_INLINE_LAMBDA { return gs[i]; });
      for (int64_t r = 0; r < s.rows; ++r) {
        const T* gs = s.a + r * s.step;
        const T* ys = s.b + r * s.step;
        s.put(r, [&](int64_t c) LOCKSTEP_INLINE_LAMBDA { return gs[c] - exp(ys[c]) * sum[c]; });
      }
    });
  });
}

}  // namespace lockstep::kernels
