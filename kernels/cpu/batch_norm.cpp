#include "lockstep/kernels/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/kernels/cpu/lane_sum.h"
#include "lockstep/kernels/cpu/past_cache.h"
#include "lockstep/kernels/cpu/staged.h"
#include "lockstep/kernels/parallel.h"

// Memory is either channels-last, pixels (rows) of C channels, or row-major, planes of one channel
// each; anything else is brought to row-major first. Sums are taken over blocks that fit the
// first-level cache, or the second's where channels are many, in the lane type, and merged in
// double: block by block within a chunk, then chunk by chunk. Blocks and chunks depend on the shape
// alone, and so do the bits of a result.
namespace lockstep::kernels {
namespace {

constexpr int64_t kBlock = 4096;  // elements of a block
constexpr int64_t kRows = 32;  // of many channels in a block: merging takes as long as a few rows
constexpr int64_t kChunk = 65536;  // elements of a chunk, which are worth a thread

struct Layout {
  explicit Layout(const View& x)
      : samples(x.shape[0]), channels(x.shape[1]), plane(1), strides(contiguous_strides(x.shape)) {
    for (size_t d = 2; d < x.shape.size(); ++d) plane *= x.shape[d];
    // Memory order: the batch, the plane, the channels.
    Shape pixels = x.shape;
    pixels.erase(pixels.begin() + 1);
    pixels.push_back(channels);
    Strides moved = contiguous_strides(pixels);
    moved.pop_back();
    moved.insert(moved.begin() + 1, 1);
    bool in_order = true;
    for (size_t d = 0; d < x.shape.size(); ++d) {
      in_order = in_order && (x.shape[d] == 1 || x.strides[d] == moved[d]);
    }
    channels_last = plane == 1 || (in_order && channels > 1);
    if (channels_last) strides = moved;
  }

  bool empty() const { return samples * plane * channels == 0; }
  int64_t count() const { return samples * plane; }  // elements per channel
  // A chunk is a number of whole rows of channels, or of whole samples.
  int64_t units() const { return channels_last ? count() : samples; }
  int64_t unit_count() const { return channels_last ? 1 : plane; }  // of one channel
  int64_t units_per_chunk() const {
    return std::max<int64_t>(channels_last ? kRows : 1, kChunk / (unit_count() * channels));
  }
  int64_t chunks() const { return (units() - 1) / units_per_chunk() + 1; }
  int64_t rows_per_block() const { return std::max(kRows, kBlock / channels); }

  int64_t samples;
  int64_t channels;
  int64_t plane;
  bool channels_last;
  Strides strides;  // in which memory is read and written
};

// Calls f(chunk, first unit, last unit + 1) for all chunks.
template <class F>
void for_each_chunk(const Layout& layout, const F& f) {
  const int64_t size = layout.units_per_chunk();
  parallel_for(layout.chunks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      f(k, k * size, std::min(layout.units(), (k + 1) * size));
    }
  });
}

// Calls f(offset, rows) for the blocks of the rows [begin, end) of a channels-last chunk.
template <class F>
LOCKSTEP_INLINE void for_each_row_block(const Layout& layout, int64_t begin, int64_t end,
                                        const F& f) {
  const int64_t rows = layout.rows_per_block();
  for (int64_t r = begin; r < end; r += rows) {
    f(r * layout.channels, std::min(rows, end - r));
  }
}

// Calls f(channel, offset, length) for the blocks of the planes of the samples [begin, end).
template <class F>
LOCKSTEP_INLINE void for_each_plane_block(const Layout& layout, int64_t begin, int64_t end,
                                          const F& f) {
  for (int64_t p = begin * layout.channels; p < end * layout.channels; ++p) {
    for (int64_t i = 0; i < layout.plane; i += kBlock) {
      f(p % layout.channels, p * layout.plane + i, std::min(kBlock, layout.plane - i));
    }
  }
}

// (C) of any floating dtype and stride as doubles; `fallback` for a null view.
std::vector<double> read(const View* v, int64_t channels, double fallback = 0) {
  std::vector<double> out(static_cast<size_t>(channels), fallback);
  if (v == nullptr) return out;
  visit_floating(v->dtype, "batch_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t c = 0; c < channels; ++c) {
      out[static_cast<size_t>(c)] = static_cast<Lane<T>>(v->as<T>()[c * v->strides[0]]);
    }
  });
  return out;
}

void write(const std::vector<double>& from, const View& v) {
  visit_floating(v.dtype, "batch_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t c = 0; c < from.size(); ++c) {
      v.as<T>()[static_cast<int64_t>(c) * v.strides[0]] = T(static_cast<Lane<T>>(from[c]));
    }
  });
}

template <class T>
std::vector<T> rounded(const std::vector<double>& from) {
  std::vector<T> out(from.size());
  for (size_t c = 0; c < from.size(); ++c) out[c] = static_cast<T>(from[c]);
  return out;
}

// Adds the statistics of nb elements per channel to those of na.
LOCKSTEP_INLINE void merge(double na, double* mean, double* m2, double nb, const double* mean_b,
                           const double* m2_b, int64_t channels) {
  const double share = nb / (na + nb);
  const double weight = na * share;
#pragma omp simd
  for (int64_t c = 0; c < channels; ++c) {
    const double delta = mean_b[c] - mean[c];
    mean[c] += delta * share;
    m2[c] += m2_b[c] + delta * delta * weight;
  }
}

// sum[c] and squares[c] += those of x - m over column c; four rows for one pass over the sums.
template <class T>
LOCKSTEP_INLINE void add_deviations(const T* x, int64_t rows, int64_t channels, const T* m, T* sum,
                                    T* squares) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T* row = x + r * channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const T d0 = row[c] - m[c];
      const T d1 = row[c + channels] - m[c];
      const T d2 = row[c + 2 * channels] - m[c];
      const T d3 = row[c + 3 * channels] - m[c];
      sum[c] += (d0 + d1) + (d2 + d3);
      squares[c] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
    }
  }
  for (; r < rows; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const T d = x[r * channels + c] - m[c];
      sum[c] += d;
      squares[c] += d * d;
    }
  }
}

// The mean of a block, given its sum: anew in f64 where that has left T's range, which a mean of
// finite numbers does not.
template <class T>
LOCKSTEP_INLINE T block_mean(const T* x, int64_t rows, int64_t step, T sum) {
  double wide = static_cast<double>(sum);
  if (!std::isfinite(wide)) [[unlikely]] {
    wide = 0;
    for (int64_t r = 0; r < rows; ++r) wide += static_cast<double>(x[r * step]);
  }
  return static_cast<T>(wide / static_cast<double>(rows));
}

// The mean and M2 of n elements, of a number m near their mean, the sum s of their deviations from
// it and that of the squares, which may have left the range.
struct Corrected {
  double mean, m2;
};
LOCKSTEP_INLINE Corrected corrected(double m, double s, double squares, double n) {
  if (std::isinf(squares)) return {m, squares};
  return {m + s / n, squares - s * s / n};
}

// Statistics of one block, by the corrected two-pass algorithm: deviations from a rounded mean m,
// whose own sum says how far off m is (Chan, Golub and LeVeque, 1983). Neither a large mean nor an
// outlier costs digits. scratch: (3, C).
template <class T>
LOCKSTEP_INLINE void row_stats(const T* x, int64_t rows, int64_t channels, T* scratch, double* mean,
                               double* m2) {
  T* m = scratch;
  T* sum = scratch + channels;
  T* squares = scratch + 2 * channels;
  const double n = static_cast<double>(rows);
  std::fill_n(scratch, 3 * channels, T{0});
  add_rows(rows, channels, m, [=](int64_t i, int64_t) LOCKSTEP_INLINE_LAMBDA { return x[i]; });
  for (int64_t c = 0; c < channels; ++c) m[c] = block_mean(x + c, rows, channels, m[c]);
  add_deviations(x, rows, channels, m, sum, squares);
  for (int64_t c = 0; c < channels; ++c) {
    const Corrected stats = corrected(m[c], sum[c], squares[c], n);
    mean[c] = stats.mean;
    m2[c] = stats.m2;
  }
}

template <class T>
LOCKSTEP_INLINE void plane_stats(const T* x, int64_t length, double* mean, double* m2) {
  const double n = static_cast<double>(length);
  const T total = lane_sum<T>(length, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { return x[i]; });
  const T m = block_mean(x, length, 1, total);
  alignas(64) T sums[kSumLanes] = {};
  alignas(64) T squares[kSumLanes] = {};
  for_each_lanes(0, length, [&](int64_t i, int64_t count) LOCKSTEP_INLINE_LAMBDA {
    fetch_later(x + length + i, count);  // the block that follows, while memory is idle
#pragma omp simd
    for (int64_t l = 0; l < count; ++l) {
      const T d = x[i + l] - m;
      sums[l] += d;
      squares[l] += d * d;
    }
  });
  fold_lanes(sums);
  fold_lanes(squares);
  const Corrected stats = corrected(m, sums[0], squares[0], n);
  *mean = stats.mean;
  *m2 = stats.m2;
}

// `block`: (2, C) doubles. The counts before the blocks of a channel are equal in all channels.
template <class T>
void chunk_stats(const Layout& layout, const T* x, int64_t begin, int64_t end, T* scratch,
                 double* block, double* mean, double* m2) {
  simd_dispatch([=, &layout]() LOCKSTEP_INLINE_LAMBDA {
    const int64_t channels = layout.channels;
    if (layout.channels_last) {
      double n = 0;
      for_each_row_block(layout, begin, end, [&](int64_t at, int64_t rows) LOCKSTEP_INLINE_LAMBDA {
        if (channels == 1) {
          plane_stats(x + at, rows, block, block + 1);
        } else {
          row_stats(x + at, rows, channels, scratch, block, block + channels);
        }
        merge(n, mean, m2, static_cast<double>(rows), block, block + channels, channels);
        n += static_cast<double>(rows);
      });
      return;
    }
    for_each_plane_block(layout, begin, end,
                         [&](int64_t c, int64_t at, int64_t length) LOCKSTEP_INLINE_LAMBDA {
                           const int64_t sample = at / (layout.plane * channels);
                           const int64_t n = (sample - begin) * layout.plane + at % layout.plane;
                           plane_stats(x + at, length, block, block + 1);
                           merge(static_cast<double>(n), mean + c, m2 + c,
                                 static_cast<double>(length), block, block + 1, 1);
                         });
  });
}

template <class T>
void stats(const Layout& layout, const T* x, double* mean, double* m2) {
  const int64_t channels = layout.channels;
  const int64_t chunks = layout.chunks();
  std::vector<double> partial(static_cast<size_t>(chunks * 4 * channels));
  std::vector<T> scratch(static_cast<size_t>(chunks * 3 * channels));
  for_each_chunk(layout, [&](int64_t k, int64_t begin, int64_t end) {
    double* slot = partial.data() + k * 4 * channels;
    chunk_stats(layout, x, begin, end, scratch.data() + k * 3 * channels, slot + 2 * channels, slot,
                slot + channels);
  });
  const int64_t full = layout.units_per_chunk() * layout.unit_count();
  for (int64_t k = 0; k < chunks; ++k) {
    const int64_t n = std::min(full, layout.count() - k * full);
    const double* slot = partial.data() + k * 4 * channels;
    merge(static_cast<double>(k * full), mean, m2, static_cast<double>(n), slot, slot + channels,
          channels);
  }
}

// Adds the sums of g and of g * (x - mean) over one chunk. scratch: (2, C).
template <class T>
void chunk_sums(const Layout& layout, const T* g, const T* x, const T* mean, int64_t begin,
                int64_t end, T* scratch, double* sum_g, double* sum_gx) {
  simd_dispatch([=, &layout]() LOCKSTEP_INLINE_LAMBDA {
    const int64_t channels = layout.channels;
    if (layout.channels_last) {
      for_each_row_block(layout, begin, end, [&](int64_t at, int64_t rows) LOCKSTEP_INLINE_LAMBDA {
        const T* gb = g + at;
        const T* xb = x + at;
        std::fill_n(scratch, 2 * channels, T{0});
        add_rows(rows, channels, scratch,
                 [=](int64_t i, int64_t) LOCKSTEP_INLINE_LAMBDA { return gb[i]; });
        add_rows(rows, channels, scratch + channels,
                 [=](int64_t i, int64_t c)
                     LOCKSTEP_INLINE_LAMBDA { return gb[i] * (xb[i] - mean[c]); });
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) {
          sum_g[c] += static_cast<double>(scratch[c]);
          sum_gx[c] += static_cast<double>(scratch[channels + c]);
        }
      });
      return;
    }
    for_each_plane_block(
        layout, begin, end, [&](int64_t c, int64_t at, int64_t length) LOCKSTEP_INLINE_LAMBDA {
          const T* gb = g + at;
          const T* xb = x + at;
          const T m = mean[c];
          sum_g[c] += static_cast<double>(
              lane_sum<T>(length, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { return gb[i]; }));
          sum_gx[c] += static_cast<double>(lane_sum<T>(
              length, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { return gb[i] * (xb[i] - m); }));
        });
  });
}

template <class T>
void sums(const Layout& layout, const T* g, const T* x, const T* mean, double* sum_g,
          double* sum_gx) {
  const int64_t channels = layout.channels;
  const int64_t chunks = layout.chunks();
  std::vector<double> partial(static_cast<size_t>(chunks * 2 * channels));
  std::vector<T> scratch(partial.size());
  for_each_chunk(layout, [&](int64_t k, int64_t begin, int64_t end) {
    double* slot = partial.data() + k * 2 * channels;
    chunk_sums(layout, g, x, mean, begin, end, scratch.data() + k * 2 * channels, slot,
               slot + channels);
  });
  for (int64_t k = 0; k < chunks; ++k) {
    const double* slot = partial.data() + k * 2 * channels;
    for (int64_t c = 0; c < channels; ++c) {
      sum_g[c] += slot[c];
      sum_gx[c] += slot[channels + c];
    }
  }
}

// Runs f(i, c) for every element: i its place in memory, c its channel. Independent.
template <class F>
void for_each_element(const Layout& layout, const F& f) {
  for_each_chunk(layout, [&](int64_t, int64_t begin, int64_t end) {
    simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
      const F body = f;
      const int64_t channels = layout.channels;
      if (layout.channels_last) {
        int64_t r = begin;
        // Four rows at once: what belongs to a channel is read once for them.
        for (; r + 4 <= end; r += 4) {
          const int64_t base = r * channels;
#pragma omp simd
          for (int64_t c = 0; c < channels; ++c) {
            body(base + c, c);
            body(base + c + channels, c);
            body(base + c + 2 * channels, c);
            body(base + c + 3 * channels, c);
          }
        }
        for (; r < end; ++r) {
          const int64_t base = r * channels;
#pragma omp simd
          for (int64_t c = 0; c < channels; ++c) body(base + c, c);
        }
        return;
      }
      for_each_plane_block(layout, begin, end,
                           [&](int64_t c, int64_t at, int64_t length) LOCKSTEP_INLINE_LAMBDA {
#pragma omp simd
                             for (int64_t i = at; i < at + length; ++i) body(i, c);
                           });
    });
  });
}

}  // namespace

void BatchNormStats::cpu(const View& x, const View& mean, const View& m2) {
  const Layout layout(x);
  std::vector<double> out_mean(static_cast<size_t>(layout.channels));
  std::vector<double> out_m2(out_mean.size());
  if (!layout.empty()) {
    visit_lane(x.dtype, "batch_norm", [&](auto tag) {
      using T = typename decltype(tag)::type;
      const StagedInput from(x, layout.strides);
      stats(layout, from.as<T>(), out_mean.data(), out_m2.data());
    });
  }
  write(out_mean, mean);
  write(out_m2, m2);
}

void BatchNormApply::cpu(const View& x, const View& mean, const View& invstd, const View* weight,
                         const View* bias, const View& y) {
  const Layout layout(x);
  if (layout.empty()) return;
  std::vector<double> scale = read(&invstd, layout.channels);
  const std::vector<double> factor = read(weight, layout.channels, 1);
  for (size_t c = 0; c < scale.size(); ++c) scale[c] *= factor[c];
  visit_lane(x.dtype, "batch_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::vector<T> means = rounded<T>(read(&mean, layout.channels));
    const std::vector<T> scales = rounded<T>(scale);
    const std::vector<T> shifts = rounded<T>(read(bias, layout.channels, 0));
    const StagedInput from(x, layout.strides);
    const StagedOutput to(y, layout.strides);
    for_each_element(layout, [in = from.as<T>(), out = to.as<T>(), m = means.data(),
                              a = scales.data(), b = shifts.data()](int64_t i, int64_t c)
                                 LOCKSTEP_INLINE_LAMBDA { out[i] = (in[i] - m[c]) * a[c] + b[c]; });
    to.finish();
  });
}

void BatchNormBackwardReduce::cpu(const View& g, const View& x, const View& mean,
                                  const View& invstd, const View& sum_g, const View& sum_g_xhat) {
  const Layout layout(x);
  std::vector<double> out_g(static_cast<size_t>(layout.channels));
  std::vector<double> out_gx(out_g.size());
  if (!layout.empty()) {
    visit_lane(x.dtype, "batch_norm", [&](auto tag) {
      using T = typename decltype(tag)::type;
      const std::vector<T> means = rounded<T>(read(&mean, layout.channels));
      const StagedInput from_g(g, layout.strides);
      const StagedInput from_x(x, layout.strides);
      sums(layout, from_g.as<T>(), from_x.as<T>(), means.data(), out_g.data(), out_gx.data());
    });
    const std::vector<double> scale = read(&invstd, layout.channels);
    for (size_t c = 0; c < scale.size(); ++c) out_gx[c] *= scale[c];
  }
  write(out_g, sum_g);
  write(out_gx, sum_g_xhat);
}

void BatchNormBackwardApply::cpu(const View& g, const View& x, const View& mean, const View& invstd,
                                 const View* weight, const View& sum_g, const View& sum_g_xhat,
                                 int64_t count, const View& gx) {
  const Layout layout(x);
  if (layout.empty()) return;
  const auto n = static_cast<double>(count);
  // gx = scale * (g - centre - (x - mean) * slope).
  const std::vector<double> inverse = read(&invstd, layout.channels);
  std::vector<double> scale = read(weight, layout.channels, 1);
  std::vector<double> centre = read(&sum_g, layout.channels);
  std::vector<double> slope = read(&sum_g_xhat, layout.channels);
  for (size_t c = 0; c < scale.size(); ++c) {
    scale[c] *= inverse[c];
    centre[c] /= n;
    slope[c] *= inverse[c] / n;
  }
  visit_lane(x.dtype, "batch_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::vector<T> means = rounded<T>(read(&mean, layout.channels));
    const std::vector<T> scales = rounded<T>(scale);
    const std::vector<T> centres = rounded<T>(centre);
    const std::vector<T> slopes = rounded<T>(slope);
    const StagedInput from_g(g, layout.strides);
    const StagedInput from_x(x, layout.strides);
    const StagedOutput to(gx, layout.strides);
    for_each_element(layout, [gp = from_g.as<T>(), xp = from_x.as<T>(), out = to.as<T>(),
                              m = means.data(), a = scales.data(), b = centres.data(),
                              d = slopes.data()](int64_t i, int64_t c) LOCKSTEP_INLINE_LAMBDA {
      out[i] = a[c] * (gp[i] - b[c] - (xp[i] - m[c]) * d[c]);
    });
    to.finish();
  });
}

}  // namespace lockstep::kernels
