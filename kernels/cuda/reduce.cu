#include "lockstep/kernels/reduce.h"

#include "lockstep/kernels/cpu/reduce_plan.h"
#include "lockstep/kernels/cuda/reduce.cuh"

namespace lockstep::kernels {
namespace {

using cuda::Indexer;
using cuda::Wide;

// Elements of type T of x, reduced to elements of Output of y.
template <class T, class Output>
struct ToOneOutput {
  static constexpr int kInputs = 1;
  static constexpr int kOperands = 2;
  const T* x;
  Output* y;
};

template <class T>
using SumOutput = std::conditional_t<is_floating_v<T>, T, int64_t>;

template <class T>
struct SumFold : ToOneOutput<T, SumOutput<T>> {
  using State = Accumulator<T>;
  static __device__ State identity() { return State{0}; }
  __device__ State load(const int64_t*, const int64_t* at, int64_t) const {
    return static_cast<State>(static_cast<Wide<T>>(this->x[at[0]]));
  }
  static __device__ State combine(State a, State b) {
    if constexpr (std::is_integral_v<State>) {
      return static_cast<State>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
  __device__ void finish(const int64_t* result, State s) const {
    this->y[result[1]] = static_cast<SumOutput<T>>(s);
  }
};

template <class T>
struct ProdFold : SumFold<T> {
  using State = Accumulator<T>;
  static __device__ State identity() { return State{1}; }
  static __device__ State combine(State a, State b) {
    if constexpr (std::is_integral_v<State>) {
      return static_cast<State>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

// The extreme value or its place, the first among equals; NaN beats all.
template <class T, bool kMax, bool kPlace>
struct ExtremeFold : ToOneOutput<T, std::conditional_t<kPlace, int64_t, T>> {
  struct State {
    Wide<T> value;
    int64_t place;  // -1: none yet
  };
  static __device__ State identity() { return {Wide<T>{}, -1}; }
  __device__ State load(const int64_t*, const int64_t* at, int64_t place) const {
    return {static_cast<Wide<T>>(this->x[at[0]]), place};
  }
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
  __device__ void finish(const int64_t* result, State s) const {
    if constexpr (kPlace) {
      this->y[result[1]] = s.place;
    } else {
      this->y[result[1]] = static_cast<T>(s.value);
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

// The dimensions of x that stay, or that go, outermost first; all of size 1 are left out. Places
// are counted in row-major order, so that places of equals can be compared.
Shape dims_of(const View& x, const View& y, bool kept) {
  Shape out;
  for (size_t d = 0; d < x.shape.size(); ++d) {
    if (x.shape[d] != 1 && (y.shape[d] != 1) == kept) out.push_back(static_cast<int64_t>(d));
  }
  return out;
}

template <template <class> class Fold>
void reduce(const View& x, const View& y, std::string_view op) {
  if (y.numel() == 0) return;
  const View* const both[2] = {&x, &y};
  const View* const alone[1] = {&x};
  const Indexer<2> kept = cuda::make_indexer(both, dims_of(x, y, true), op);
  const Indexer<1> gone = cuda::make_indexer(alone, dims_of(x, y, false), op);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Fold<T> fold;
    fold.x = static_cast<const T*>(x.data);
    fold.y = static_cast<decltype(fold.y)>(y.data);
    cuda::reduce(fold, kept, y.numel(), gone, x.numel() / y.numel(), x.device);
  });
}

}  // namespace

void Sum::cuda(const View& x, const View& y) { reduce<SumFold>(x, y, "sum"); }
void Prod::cuda(const View& x, const View& y) { reduce<ProdFold>(x, y, "prod"); }
void Max::cuda(const View& x, const View& y) {
  if (check_some(x, y, "max")) reduce<MaxFold>(x, y, "max");
}
void Min::cuda(const View& x, const View& y) {
  if (check_some(x, y, "min")) reduce<MinFold>(x, y, "min");
}
void ArgMax::cuda(const View& x, const View& y) {
  if (check_some(x, y, "argmax")) reduce<ArgMaxFold>(x, y, "argmax");
}
void ArgMin::cuda(const View& x, const View& y) {
  if (check_some(x, y, "argmin")) reduce<ArgMinFold>(x, y, "argmin");
}

}  // namespace lockstep::kernels
