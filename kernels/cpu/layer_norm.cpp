#include "lockstep/kernels/layer_norm.h"

#include <algorithm>
#include <vector>

#include "lockstep/kernels/cpu/lane_sum.h"
#include "lockstep/kernels/cpu/past_cache.h"
#include "lockstep/kernels/cpu/staged.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/vector_math.h"

// A row is read from memory once: it stays in the cache for the second pass, which needs the sums
// of the first.
namespace lockstep::kernels {
namespace {

constexpr int64_t kGrain = 16384;  // elements that are worth a thread
constexpr int64_t kChunk = 65536;  // elements whose rows are summed into one partial gradient
constexpr int64_t kPiece = 512;    // elements of a row that are summed at a time

int64_t rows_of(int64_t elements, int64_t size) { return std::max<int64_t>(1, elements / size); }

// Values for each place of a row, `missing` where there are none.
template <class T>
std::vector<T> places(const View* v, int64_t size, T missing) {
  std::vector<T> out(static_cast<size_t>(size), missing);
  if (v == nullptr) return out;
  const StagedInput from(*v, contiguous_strides(v->shape));
  std::copy_n(from.as<T>(), size, out.begin());
  return out;
}

template <class T>
void store(const std::vector<T>& values, const View& out) {
  const StagedOutput to(out, contiguous_strides(out.shape));
  std::copy(values.begin(), values.end(), to.as<T>());
  to.finish();
}

template <class T>
void forward(const T* x, const T* weight, const T* bias, double eps, T* y, T* mean, T* rstd,
             int64_t rows, int64_t size) {
  const T n = static_cast<T>(size);
  const T epsilon = static_cast<T>(eps);
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const bool past_cache = goes_past_cache(y, size * kSize, rows * size * kSize);
  parallel_for(rows, rows_of(kGrain, size), [=](int64_t begin, int64_t end) {
    simd_dispatch([=]() LOCKSTEP_INLINE_LAMBDA {
      for (int64_t r = begin; r < end; ++r) {
        const T* in = x + r * size;
        const T m = lane_sum<T>(size, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { return in[i]; }) / n;
        T squares{0};
        for (int64_t first = 0; first < size; first += kPiece) {
          const T* piece = in + first;
          const int64_t count = std::min(kPiece, size - first);
          if (size <= kAhead)
            fetch_later(piece + size, count);  // of the next row, as memory keeps up
          squares += lane_sum<T>(count, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA {
            return (piece[i] - m) * (piece[i] - m);
          });
        }
        const T s = rsqrt(squares / n + epsilon);
        store_values(y + r * size, size, past_cache, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA {
          return (in[i] - m) * s * weight[i] + bias[i];
        });
        mean[r] = m;
        rstd[r] = s;
      }
    });
    end_past_cache();
  });
}

// gx = rstd (gw - mean(gw) - xhat mean(gw xhat)) with gw = g weight.
template <class T>
LOCKSTEP_INLINE void backward_row(const T* g, const T* x, T mean, T rstd, const T* weight, T* gx,
                                  int64_t size) {
  const T sum =
      lane_sum<T>(size, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { return g[i] * weight[i]; });
  const T dot = lane_sum<T>(
      size, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { return g[i] * weight[i] * (x[i] - mean); });
  const T centre = sum / static_cast<T>(size);
  const T slope = dot * rstd * rstd / static_cast<T>(size);
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    gx[i] = rstd * (g[i] * weight[i] - centre - (x[i] - mean) * slope);
  }
}

// Adds a row's part of the gradients of weight and bias.
template <class T>
LOCKSTEP_INLINE void add_row(const T* g, const T* x, T mean, T rstd, T* gweight, T* gbias,
                             int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    gweight[i] += g[i] * ((x[i] - mean) * rstd);
    gbias[i] += g[i];
  }
}

}  // namespace

void LayerNorm::cpu(const View& x, const View* weight, const View* bias, double eps, const View& y,
                    const View& mean, const View& rstd) {
  if (x.numel() == 0) return;
  const int64_t rows = mean.numel();
  const int64_t size = x.numel() / rows;
  visit_lane(x.dtype, "layer_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Strides strides = contiguous_strides(x.shape);
    const StagedInput from(x, strides);
    const StagedOutput to(y, strides);
    const std::vector<T> w = places<T>(weight, size, T{1});
    const std::vector<T> b = places<T>(bias, size, T{0});
    forward(from.as<T>(), w.data(), b.data(), eps, to.as<T>(), mean.as<T>(), rstd.as<T>(), rows,
            size);
    to.finish();
  });
}

void LayerNormBackward::cpu(const View& g, const View& x, const View& mean, const View& rstd,
                            const View* weight, const View* gx, const View* gweight,
                            const View* gbias) {
  const auto clear = [](const View* v) {
    if (v != nullptr)
      visit_lane(v->dtype, "layer_norm", [&](auto tag) {
        store(std::vector<typename decltype(tag)::type>(static_cast<size_t>(v->numel())), *v);
      });
  };
  if (x.numel() == 0) {
    clear(gweight);
    clear(gbias);
    return;
  }
  const int64_t rows = mean.numel();
  const int64_t size = x.numel() / rows;
  const int64_t step = rows_of(kChunk, size);
  const int64_t chunks = (rows + step - 1) / step;
  const bool wants_places = gweight != nullptr || gbias != nullptr;
  visit_lane(x.dtype, "layer_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Strides strides = contiguous_strides(x.shape);
    const StagedInput from_g(g, strides);
    const StagedInput from_x(x, strides);
    const std::vector<T> w = places<T>(weight, size, T{1});
    // Where nobody wants gx, a view of the right shape stands in and is not written.
    const StagedOutput to(gx == nullptr ? x : *gx, strides);
    std::vector<T> partial(static_cast<size_t>(wants_places ? chunks * 2 * size : 0));
    parallel_for(chunks, 1,
                 [&, gp = from_g.template as<T>(), xp = from_x.template as<T>(), mp = mean.as<T>(),
                  sp = rstd.as<T>(), wp = w.data(),
                  out = gx == nullptr ? nullptr : to.template as<T>()](int64_t begin, int64_t end) {
                   simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
                     for (int64_t c = begin; c < end; ++c) {
                       const int64_t first = c * step;
                       const int64_t count = std::min(step, rows - first);
                       for (int64_t r = first; r < first + count; ++r) {
                         const int64_t at = r * size;
                         if (out != nullptr)
                           backward_row(gp + at, xp + at, mp[r], sp[r], wp, out + at, size);
                         if (wants_places) {
                           T* sums = partial.data() + c * 2 * size;
                           add_row(gp + at, xp + at, mp[r], sp[r], sums, sums + size, size);
                         }
                       }
                     }
                   });
                 });
    if (gx != nullptr) to.finish();
    if (!wants_places) return;
    std::vector<double> total(static_cast<size_t>(2 * size));
    for (int64_t c = 0; c < chunks; ++c) {
      const T* sums = partial.data() + c * 2 * size;
      for (int64_t i = 0; i < 2 * size; ++i) total[static_cast<size_t>(i)] += sums[i];
    }
    const std::vector<T> rounded(total.begin(), total.end());
    if (gweight != nullptr)
      store(std::vector<T>(rounded.begin(), rounded.begin() + size), *gweight);
    if (gbias != nullptr) store(std::vector<T>(rounded.begin() + size, rounded.end()), *gbias);
  });
}

}  // namespace lockstep::kernels
