// A block takes a row: x is read three times, from the second on out of the cache where a row fits
// it. The gradients of weight and bias are reductions over the rows.
#include "lockstep/kernels/layer_norm.h"

#include "lockstep/kernels/cuda/lanes.cuh"
#include "lockstep/kernels/cuda/reduce.cuh"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

using cuda::block_reduce;
using cuda::Indexer;
using cuda::kThreads;
using cuda::Lanes;
using cuda::Plus;
using cuda::Wide;

template <class C>
__device__ C sum_of_block(C value) {
  return block_reduce(value, C{0}, Plus());
}

template <class C>
__device__ C weight_at(const C* weight, int64_t i) {
  return weight == nullptr ? C{1} : weight[i];
}

// Where element row * size + i of each view lies.
template <int n>
Indexer<n> make_rows(const View* const (&views)[n]) {
  return cuda::make_indexer(views, cuda::row_major_order(views[0]->shape), "layer_norm");
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    layer_norm_kernel(const T* x, const Wide<T>* weight, const Wide<T>* bias, Wide<T> eps, T* y,
                      Wide<T>* mean, Wide<T>* rstd, Indexer<2> places, int64_t rows, int64_t size) {
  using C = Wide<T>;
  const C n = static_cast<C>(size);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t first = r * size;
    C sum = 0;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      sum += static_cast<C>(x[places.locate(first + i).at[0]]);
    }
    const C m = sum_of_block(sum) / n;
    C squares = 0;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      const C d = static_cast<C>(x[places.locate(first + i).at[0]]) - m;
      squares += d * d;
    }
    const C s = C{1} / sqrt(sum_of_block(squares) / n + eps);
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      const auto at = places.locate(first + i);
      const C shift = bias == nullptr ? C{0} : bias[i];
      y[at.at[1]] =
          static_cast<T>((static_cast<C>(x[at.at[0]]) - m) * s * weight_at(weight, i) + shift);
    }
    if (threadIdx.x == 0) {
      mean[r] = m;
      rstd[r] = s;
    }
  }
}

// gx = rstd (gw - mean(gw) - xhat mean(gw xhat)) with gw = g weight.
template <class T>
__global__ void __launch_bounds__(kThreads)
    layer_norm_backward_kernel(const T* g, const T* x, const Wide<T>* mean, const Wide<T>* rstd,
                               const Wide<T>* weight, T* gx, Indexer<3> places, int64_t rows,
                               int64_t size) {
  using C = Wide<T>;
  const C n = static_cast<C>(size);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t first = r * size;
    const C m = mean[r];
    const C s = rstd[r];
    C sum = 0, dot = 0;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      const auto at = places.locate(first + i);
      const C gw = static_cast<C>(g[at.at[0]]) * weight_at(weight, i);
      sum += gw;
      dot += gw * (static_cast<C>(x[at.at[1]]) - m);
    }
    const C centre = sum_of_block(sum) / n;
    const C slope = sum_of_block(dot) * s * s / n;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      const auto at = places.locate(first + i);
      const C gw = static_cast<C>(g[at.at[0]]) * weight_at(weight, i);
      const C d = static_cast<C>(x[at.at[1]]) - m;
      gx[at.at[2]] = static_cast<T>(s * (gw - centre - d * slope));
    }
  }
}

// The sums over the rows of g xhat and of g.
template <class T>
struct ParametersFold {
  using C = Wide<T>;
  static constexpr int kInputs = 2;
  static constexpr int kOperands = 4;
  struct State {
    C gweight;
    C gbias;
  };
  const T* g;
  const T* x;
  const C* mean;
  const C* rstd;
  T* gweight;  // or null
  T* gbias;    // or null

  static __device__ State identity() { return {C{0}, C{0}}; }
  __device__ State load(const int64_t*, const int64_t* at, int64_t row) const {
    const C gi = static_cast<C>(g[at[0]]);
    return {gi * ((static_cast<C>(x[at[1]]) - mean[row]) * rstd[row]), gi};
  }
  static __device__ State combine(State a, State b) {
    return {a.gweight + b.gweight, a.gbias + b.gbias};
  }
  __device__ void finish(const int64_t* result, State s) const {
    if (gweight != nullptr) gweight[result[2]] = static_cast<T>(s.gweight);
    if (gbias != nullptr) gbias[result[3]] = static_cast<T>(s.gbias);
  }
};

// gweight or gbias, one element for each place of a row, as a view of x's shape that stands still
// along the rows.
View along_row(const View* v, const View& x) {
  View out = x;
  out.strides = Strides(x.shape.size(), 0);
  if (v == nullptr) return out;
  size_t d = x.shape.size();
  for (size_t i = v->shape.size(); i-- > 0;) out.strides[--d] = v->strides[i];
  return out;
}

template <class T>
void reduce_to_places(const View& g, const View& x, const View& mean, const View& rstd,
                      const View* gweight, const View* gbias, int64_t rows, int64_t size) {
  using C = Wide<T>;
  const size_t rank = x.shape.size();
  const size_t first = rank - (gweight != nullptr ? gweight : gbias)->shape.size();
  const View w = along_row(gweight, x), b = along_row(gbias, x);
  const ParametersFold<T> fold = {static_cast<const T*>(g.data),
                                  static_cast<const T*>(x.data),
                                  static_cast<const C*>(mean.data),
                                  static_cast<const C*>(rstd.data),
                                  gweight == nullptr ? nullptr : gweight->as<T>(),
                                  gbias == nullptr ? nullptr : gbias->as<T>()};
  const View* const kept[4] = {&g, &x, &w, &b};
  const View* const gone[2] = {&g, &x};
  const Shape of_row = cuda::row_major_order(x.shape, first, rank);
  const Shape of_rows = cuda::row_major_order(x.shape, 0, first);
  cuda::reduce(fold, cuda::make_indexer(kept, of_row, "layer_norm"), size,
               cuda::make_indexer(gone, of_rows, "layer_norm"), rows, x.device);
}

}  // namespace

void LayerNorm::cuda(const View& x, const View* weight, const View* bias, double eps, const View& y,
                     const View& mean, const View& rstd) {
  if (x.numel() == 0) return;
  const int64_t rows = mean.numel();
  visit_floating(x.dtype, "layer_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Wide<T>;
    const Lanes w(weight, dtype_of<C>()), b(bias, dtype_of<C>());
    const View* const views[2] = {&x, &y};
    cuda::launch_kernel(cuda::grid_for(rows, 1), dim3(kThreads), layer_norm_kernel<T>,
                        static_cast<const T*>(x.data), w.as<C>(), b.as<C>(), static_cast<C>(eps),
                        y.as<T>(), mean.as<C>(), rstd.as<C>(), make_rows(views), rows,
                        x.numel() / rows);
  });
}

void LayerNormBackward::cuda(const View& g, const View& x, const View& mean, const View& rstd,
                             const View* weight, const View* gx, const View* gweight,
                             const View* gbias) {
  const int64_t rows = mean.numel();
  const int64_t size = rows == 0 ? 0 : x.numel() / rows;
  visit_floating(x.dtype, "layer_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Wide<T>;
    if (gx != nullptr && x.numel() > 0) {
      const Lanes w(weight, dtype_of<C>());
      const View* const views[3] = {&g, &x, gx};
      cuda::launch_kernel(cuda::grid_for(rows, 1), dim3(kThreads), layer_norm_backward_kernel<T>,
                          static_cast<const T*>(g.data), static_cast<const T*>(x.data),
                          static_cast<const C*>(mean.data), static_cast<const C*>(rstd.data),
                          w.as<C>(), gx->as<T>(), make_rows(views), rows, size);
    }
    if (x.numel() > 0 && (gweight != nullptr || gbias != nullptr)) {
      reduce_to_places<T>(g, x, mean, rstd, gweight, gbias, rows, size);
    }
  });
  for (const View* sum : {gweight, gbias}) {
    if (sum != nullptr && x.numel() == 0) Fill::cuda(*sum, 0.0);
  }
}

}  // namespace lockstep::kernels
