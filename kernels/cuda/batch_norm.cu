// Statistics and sums are reductions to channels; the passes that write walk memory in its own
// order, 16 bytes at a time where the elements of such a pack lie alike in all operands. Apply
// reads and writes each element once; the gradient's sums read g and x, and its last pass reads
// them again.
#include "lockstep/kernels/batch_norm.h"

#include "lockstep/kernels/cuda/elementwise.cuh"
#include "lockstep/kernels/cuda/lanes.cuh"
#include "lockstep/kernels/cuda/reduce.cuh"

namespace lockstep::kernels {
namespace {

using cuda::Indexer;
using cuda::kThreads;
using cuda::Lanes;
using cuda::Pack;
using cuda::Wide;

// A vector (C) as a view of x's shape that stands still along all but the channels.
View along_channels(const View& vector, const View& x) {
  View out = vector;
  out.shape = x.shape;
  out.strides = Strides(x.shape.size(), 0);
  out.strides[1] = vector.strides[0];
  return out;
}

// All dimensions of x but the channels, from the largest stride to the smallest.
Shape reduced_dims(const View& x) {
  Shape out = memory_order(x);
  out.erase(std::remove(out.begin(), out.end(), 1), out.end());
  return out;
}

// Elements of each channel.
int64_t count_of(const View& x) {
  int64_t out = 1;
  for (size_t d = 0; d < x.shape.size(); ++d) out *= d == 1 ? 1 : x.shape[d];
  return out;
}

// Reduces inputs, of one shape, to vectors: `views` are kInputs inputs, then vectors (C).
template <class Fold>
void reduce_to_channels(const Fold& fold, const View* const (&views)[Fold::kOperands]) {
  const View& x = *views[0];
  View operands[Fold::kOperands];
  const View* kept[Fold::kOperands];
  const View* gone[Fold::kInputs];
  for (int k = 0; k < Fold::kOperands; ++k) {
    operands[k] = k < Fold::kInputs ? *views[k] : along_channels(*views[k], x);
    kept[k] = &operands[k];
    if (k < Fold::kInputs) gone[k] = &operands[k];
  }
  cuda::reduce(fold, cuda::make_indexer(kept, {1}, "batch_norm"), x.shape[1],
               cuda::make_indexer(gone, reduced_dims(x), "batch_norm"), count_of(x), x.device);
}

// Mean and squared deviation of `count` elements, merged by Chan, Golub and LeVeque, 1979.
template <class T>
struct StatsFold {
  using C = Wide<T>;
  static constexpr int kInputs = 1;
  static constexpr int kOperands = 3;
  struct State {
    C mean;
    C m2;
    int64_t count;
  };
  const T* x;
  C* mean;
  C* m2;

  static __device__ State identity() { return {C{0}, C{0}, 0}; }
  __device__ State load(const int64_t*, const int64_t* at, int64_t) const {
    return {static_cast<C>(x[at[0]]), C{0}, 1};
  }
  static __device__ State combine(State a, State b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    const int64_t count = a.count + b.count;
    const C share = static_cast<C>(b.count) / static_cast<C>(count);
    const C delta = b.mean - a.mean;
    return {a.mean + delta * share, a.m2 + b.m2 + delta * delta * share * static_cast<C>(a.count),
            count};
  }
  __device__ void finish(const int64_t* result, State s) const {
    mean[result[1]] = s.mean;
    m2[result[2]] = s.m2;
  }
};

// The sums of g and of g xhat.
template <class T>
struct GradientFold {
  using C = Wide<T>;
  static constexpr int kInputs = 2;
  static constexpr int kOperands = 6;
  struct State {
    C g;
    C gx;
  };
  const T* g;
  const T* x;
  const C* mean;
  const C* invstd;
  C* sum_g;
  C* sum_g_xhat;

  static __device__ State identity() { return {C{0}, C{0}}; }
  __device__ State load(const int64_t* result, const int64_t* at, int64_t) const {
    const C gi = static_cast<C>(g[at[0]]);
    return {gi, gi * (static_cast<C>(x[at[1]]) - mean[result[2]])};
  }
  static __device__ State combine(State a, State b) { return {a.g + b.g, a.gx + b.gx}; }
  __device__ void finish(const int64_t* result, State s) const {
    sum_g[result[4]] = s.g;
    sum_g_xhat[result[5]] = s.gx * invstd[result[3]];
  }
};

template <class C>
struct Affine {
  const C* mean;
  const C* invstd;
  const C* weight;  // or null
  __device__ C scale(int64_t c) const {
    return weight == nullptr ? invstd[c] : invstd[c] * weight[c];
  }
};

template <class T>
struct ApplyBody {
  using C = Wide<T>;
  static constexpr int kInputs = 1;
  Affine<C> affine;
  const C* bias;  // or null
  __device__ C run(const C* in, int64_t c) const {
    const C shift = bias == nullptr ? C{0} : bias[c];
    return (in[0] - affine.mean[c]) * affine.scale(c) + shift;
  }
};

template <class T>
struct GradientBody {
  using C = Wide<T>;
  static constexpr int kInputs = 2;
  Affine<C> affine;
  const C* sum_g;
  const C* sum_g_xhat;
  C one_over_count;
  __device__ C run(const C* in, int64_t c) const {
    const C centre = sum_g[c] * one_over_count;
    const C slope = sum_g_xhat[c] * affine.invstd[c] * one_over_count;
    return affine.scale(c) * (in[0] - centre - (in[1] - affine.mean[c]) * slope);
  }
};

template <class T, int kInputs>
struct Inputs {
  const T* at[kInputs];
};

// out = body.run(inputs, channel) in packs of n elements, which are neighbours in inputs and output
// and whose channels are channel_step apart; `places` counts packs, with the first one's channel as
// its last operand.
template <class T, int n, class Body>
__global__ void __launch_bounds__(kThreads, cuda::kBlocks)
    channels_kernel(Body body, Inputs<T, Body::kInputs> in, T* out,
                    Indexer<Body::kInputs + 2> places, int64_t packs, int64_t channel_step) {
  using C = Wide<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += step) {
    const auto at = places.locate(i);
    Pack<T, n> values[Body::kInputs];
    for (int k = 0; k < Body::kInputs; ++k) {
      values[k] = *reinterpret_cast<const Pack<T, n>*>(in.at[k] + at.at[k]);
    }
    Pack<T, n> result;
    for (int j = 0; j < n; ++j) {
      C element[Body::kInputs];
      for (int k = 0; k < Body::kInputs; ++k) element[k] = static_cast<C>(values[k].at[j]);
      result.at[j] = static_cast<T>(body.run(element, at.at[Body::kInputs + 1] + j * channel_step));
    }
    *reinterpret_cast<Pack<T, n>*>(out + at.at[Body::kInputs]) = result;
  }
}

template <class T, class Body, class... Views>
void over_channels(const Body& body, const View& out, const Views&... inputs) {
  constexpr int kOperands = sizeof...(inputs) + 1;
  View channel;
  channel.shape = out.shape;
  channel.strides = Strides(out.shape.size(), 0);
  channel.strides[1] = 1;
  const View* const views[kOperands + 1] = {&inputs..., &out, &channel};
  Indexer<kOperands + 1> places = cuda::make_indexer(views, memory_order(out), "batch_norm");
  constexpr int n = 16 / sizeof(T);
  bool packs = places.rank > 0 && places.sizes[0] % n == 0;
  for (int k = 0; k < kOperands && packs; ++k) {
    packs = places.strides[0][k] == 1 && reinterpret_cast<uintptr_t>(views[k]->data) % 16 == 0;
    for (int d = 1; d < places.rank && packs; ++d) packs = places.strides[d][k] % n == 0;
  }
  const int64_t channel_step = places.rank > 0 ? places.strides[0][kOperands] : 0;
  const Inputs<T, Body::kInputs> in = {{static_cast<const T*>(inputs.data)...}};
  const auto run = [&](auto kernel, int64_t count) {
    cuda::launch_kernel(cuda::grid_for(count), dim3(kThreads), kernel, body, in, out.as<T>(),
                        places, count, channel_step);
  };
  if (!packs) return run(channels_kernel<T, 1, Body>, out.numel());
  places.sizes[0] /= n;
  for (int k = 0; k <= kOperands; ++k) places.strides[0][k] *= n;
  run(channels_kernel<T, n, Body>, out.numel() / n);
}

}  // namespace

void BatchNormStats::cuda(const View& x, const View& mean, const View& m2) {
  visit_floating(x.dtype, "batch_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const StatsFold<T> fold = {static_cast<const T*>(x.data), mean.as<Wide<T>>(), m2.as<Wide<T>>()};
    reduce_to_channels(fold, {&x, &mean, &m2});
  });
}

void BatchNormApply::cuda(const View& x, const View& mean, const View& invstd, const View* weight,
                          const View* bias, const View& y) {
  if (x.numel() == 0) return;
  visit_floating(x.dtype, "batch_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Wide<T>;
    const Lanes m(&mean, dtype_of<C>()), s(&invstd, dtype_of<C>()), w(weight, dtype_of<C>()),
        b(bias, dtype_of<C>());
    const ApplyBody<T> body = {{m.as<C>(), s.as<C>(), w.as<C>()}, b.as<C>()};
    over_channels<T>(body, y, x);
  });
}

void BatchNormBackwardReduce::cuda(const View& g, const View& x, const View& mean,
                                   const View& invstd, const View& sum_g, const View& sum_g_xhat) {
  visit_floating(x.dtype, "batch_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Wide<T>;
    const GradientFold<T> fold = {static_cast<const T*>(g.data),
                                  static_cast<const T*>(x.data),
                                  static_cast<const C*>(mean.data),
                                  static_cast<const C*>(invstd.data),
                                  sum_g.as<C>(),
                                  sum_g_xhat.as<C>()};
    reduce_to_channels(fold, {&g, &x, &mean, &invstd, &sum_g, &sum_g_xhat});
  });
}

void BatchNormBackwardApply::cuda(const View& g, const View& x, const View& mean,
                                  const View& invstd, const View* weight, const View& sum_g,
                                  const View& sum_g_xhat, int64_t count, const View& gx) {
  if (x.numel() == 0) return;
  visit_floating(x.dtype, "batch_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Wide<T>;
    const Lanes m(&mean, dtype_of<C>()), s(&invstd, dtype_of<C>()), w(weight, dtype_of<C>()),
        sg(&sum_g, dtype_of<C>()), sgx(&sum_g_xhat, dtype_of<C>());
    const GradientBody<T> body = {{m.as<C>(), s.as<C>(), w.as<C>()},
                                  sg.as<C>(),
                                  sgx.as<C>(),
                                  static_cast<C>(1 / static_cast<double>(count))};
    over_channels<T>(body, gx, g, x);
  });
}

}  // namespace lockstep::kernels
