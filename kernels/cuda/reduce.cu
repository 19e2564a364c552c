// Reductions over any dimensions. A block of 256 threads is folded into columns (results) and rows
// (shares of what is reduced): 1 by 256 where the reduced elements are the neighbours in memory, 32
// by 8 where the kept ones are. Where there are fewer results than the device has room for, what is
// reduced is cut into pieces, whose results a second launch reduces. The order of additions depends
// on shapes and strides alone. Each element is read once.
#include "lockstep/kernels/reduce.h"

#include <limits>
#include <memory>

#include "lockstep/kernels/cpu/reduce_plan.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/memory.h"

namespace lockstep::kernels {
namespace {

using cuda::Indexer;
using cuda::kThreads;
using cuda::Wide;

// What is folded: a state, made of an element and its place, combined, and finished.
template <class T>
struct SumFold {
  using State = Accumulator<T>;
  using Output = std::conditional_t<is_floating_v<T>, T, int64_t>;
  static __device__ State identity() { return State{0}; }
  static __device__ State load(T x, int64_t) { return static_cast<State>(static_cast<Wide<T>>(x)); }
  static __device__ State combine(State a, State b) {
    if constexpr (std::is_integral_v<State>) {
      return static_cast<State>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
  static __device__ Output finish(State s) { return static_cast<Output>(s); }
};

template <class T>
struct ProdFold {
  using State = Accumulator<T>;
  using Output = typename SumFold<T>::Output;
  static __device__ State identity() { return State{1}; }
  static __device__ State load(T x, int64_t) { return static_cast<State>(static_cast<Wide<T>>(x)); }
  static __device__ State combine(State a, State b) {
    if constexpr (std::is_integral_v<State>) {
      return static_cast<State>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
  static __device__ Output finish(State s) { return static_cast<Output>(s); }
};

// The extreme value and its place, the first among equals; NaN beats all.
template <class T, bool kMax, bool kPlace>
struct ExtremeFold {
  struct State {
    Wide<T> value;
    int64_t place;  // -1: none yet
  };
  using Output = std::conditional_t<kPlace, int64_t, T>;
  static __device__ State identity() { return {Wide<T>{}, -1}; }
  static __device__ State load(T x, int64_t place) { return {static_cast<Wide<T>>(x), place}; }
  static __device__ State combine(State a, State b) {
    if (b.place < 0) return a;
    if (a.place < 0) return b;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan || b_nan) {
      if (a_nan && b_nan) return a.place < b.place ? a : b;
      return a_nan ? a : b;
    }
    if (a.value == b.value) return a.place < b.place ? a : b;
    return (kMax ? a.value > b.value : a.value < b.value) ? a : b;
  }
  static __device__ Output finish(State s) {
    if constexpr (kPlace) {
      return s.place;
    } else {
      return static_cast<T>(s.value);
    }
  }
};
template <class T>
using MaxFold = ExtremeFold<T, true, false>;
template <class T>
using MinFold = ExtremeFold<T, false, false>;
template <class T>
using ArgMaxFold = ExtremeFold<T, true, true>;
template <class T>
using ArgMinFold = ExtremeFold<T, false, true>;

// What a launch reduces: kept results, each of `gone` elements in `pieces` pieces of `length`, the
// last of what is left.
struct Extent {
  int64_t kept;
  int64_t gone;
  int64_t pieces;
  int64_t length;
};

// Folds the rows of the block into row 0. blockDim.y is a power of two.
template <class Fold>
__device__ typename Fold::State fold_rows(typename Fold::State state) {
  using State = typename Fold::State;
  LOCKSTEP_SHARED(State, states, kThreads);
  const unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
  states[at] = state;
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) states[at] = Fold::combine(states[at], states[at + half * blockDim.x]);
  }
  return states[threadIdx.x];
}

// partial[result * pieces + piece], or y itself where there is one piece.
template <class Fold, class T>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(const T* x, Indexer<2> kept, Indexer<1> gone, Extent extent,
                  typename Fold::State* partial, typename Fold::Output* y) {
  const int64_t piece = blockIdx.y;
  const int64_t begin = piece * extent.length;
  const int64_t end = begin + extent.length < extent.gone ? begin + extent.length : extent.gone;
  for (int64_t first = int64_t{blockIdx.x} * blockDim.x; first < extent.kept;
       first += int64_t{gridDim.x} * blockDim.x) {
    const int64_t result = first + threadIdx.x;
    typename Fold::State state = Fold::identity();
    typename Indexer<2>::Offsets at = {};
    if (result < extent.kept) {
      at = kept.locate(result);
      for (int64_t i = begin + threadIdx.y; i < end; i += blockDim.y) {
        state = Fold::combine(state, Fold::load(x[at.at[0] + gone.locate(i).at[0]], i));
      }
    }
    state = fold_rows<Fold>(state);
    if (threadIdx.y == 0 && result < extent.kept) {
      if (extent.pieces > 1) {
        partial[result * extent.pieces + piece] = state;
      } else {
        y[at.at[1]] = Fold::finish(state);
      }
    }
    __syncthreads();  // the states have been read
  }
}

template <class Fold>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const typename Fold::State* partial, Indexer<2> kept, Extent extent,
                  typename Fold::Output* y) {
  for (int64_t result = blockIdx.x; result < extent.kept; result += gridDim.x) {
    typename Fold::State state = Fold::identity();
    for (int64_t i = threadIdx.y; i < extent.pieces; i += blockDim.y) {
      state = Fold::combine(state, partial[result * extent.pieces + i]);
    }
    state = fold_rows<Fold>(state);
    if (threadIdx.y == 0) y[kept.locate(result).at[1]] = Fold::finish(state);
    __syncthreads();
  }
}

// The dimensions of x that stay, or that go, outermost first; all of size 1 are left out. Places
// are counted in row-major order, so that places of equals can be compared.
Shape dims_of(const View& x, const View& y, bool kept) {
  Shape out;
  for (size_t d = 0; d < x.shape.size(); ++d) {
    if (x.shape[d] != 1 && (y.shape[d] != 1) == kept) out.push_back(static_cast<int64_t>(d));
  }
  return out;
}

template <template <class> class Fold, class T>
void reduce(const View& x, const View& y, std::string_view op) {
  using F = Fold<T>;
  const View* const both[2] = {&x, &y};
  const View* const alone[1] = {&x};
  const Indexer<2> kept = cuda::make_indexer(both, dims_of(x, y, true), op);
  const Indexer<1> gone = cuda::make_indexer(alone, dims_of(x, y, false), op);
  Extent extent = {y.numel(), 1, 1, 0};
  for (int64_t d : dims_of(x, y, false)) extent.gone *= x.shape[static_cast<size_t>(d)];
  if (x.numel() == 0) extent.gone = 0;
  const bool columns = kept.rank > 0 && kept.strides[0][0] == 1 && extent.kept > 1;
  const dim3 block = columns ? dim3(32, kThreads / 32) : dim3(1, kThreads);
  const int64_t units = (extent.kept + block.x - 1) / block.x;
  const int64_t room = cuda::full_grid();
  // A piece is worth a block if each thread of it adds several elements.
  extent.pieces =
      std::clamp<int64_t>(extent.gone / (16 * block.y), 1, std::max<int64_t>(1, room / units));
  extent.length = (extent.gone + extent.pieces - 1) / extent.pieces;
  auto* out = y.as<typename F::Output>();
  std::shared_ptr<void> partial;
  if (extent.pieces > 1) {
    partial = allocate(static_cast<size_t>(extent.kept * extent.pieces) * sizeof(typename F::State),
                       x.device);
  }
  auto* states = static_cast<typename F::State*>(partial.get());
  const dim3 grid(cuda::grid_for(units, 1).x, static_cast<unsigned>(extent.pieces));
  cuda::launch_kernel(grid, block, reduce_kernel<F, T>, static_cast<const T*>(x.data), kept, gone,
                      extent, states, out);
  if (extent.pieces > 1) {
    cuda::launch_kernel(cuda::grid_for(extent.kept, 1), dim3(1, kThreads), finish_kernel<F>, states,
                        kept, extent, out);
  }
}

template <template <class> class Fold>
void reduce_any(const View& x, const View& y, std::string_view op) {
  if (y.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto tag) { reduce<Fold, typename decltype(tag)::type>(x, y, op); });
}

}  // namespace

void Sum::cuda(const View& x, const View& y) { reduce_any<SumFold>(x, y, "sum"); }
void Prod::cuda(const View& x, const View& y) { reduce_any<ProdFold>(x, y, "prod"); }
void Max::cuda(const View& x, const View& y) {
  if (check_some(x, y, "max")) reduce_any<MaxFold>(x, y, "max");
}
void Min::cuda(const View& x, const View& y) {
  if (check_some(x, y, "min")) reduce_any<MinFold>(x, y, "min");
}
void ArgMax::cuda(const View& x, const View& y) {
  if (check_some(x, y, "argmax")) reduce_any<ArgMaxFold>(x, y, "argmax");
}
void ArgMin::cuda(const View& x, const View& y) {
  if (check_some(x, y, "argmin")) reduce_any<ArgMinFold>(x, y, "argmin");
}

}  // namespace lockstep::kernels
