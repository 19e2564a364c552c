// A block takes a row: one pass for the largest element, one for the sum, one that writes. Rows are
// along any dimension; those along the innermost are read by neighbours. Reads each input twice or
// three times, from the second on out of the cache where a row fits it.
#include "lockstep/kernels/softmax.h"

#include <limits>

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/places.cuh"
#include "lockstep/kernels/text.h"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

using cuda::block_reduce;
using cuda::Indexer;
using cuda::kThreads;
using cuda::Plus;
using cuda::Wide;

// A NaN need not be kept: it comes back from exp.
struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

template <class C>
__device__ C lowest() {
  return -std::numeric_limits<C>::infinity();
}

// log(sum(exp(row))) of size elements at a stride, in every thread: largest + log_sum.
template <class C>
struct LogSum {
  C largest;
  C log_sum;
};
template <class T>
__device__ LogSum<Wide<T>> log_sum_of(const T* row, int64_t stride, int64_t size) {
  using C = Wide<T>;
  C most = lowest<C>();
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    most = Larger()(most, static_cast<C>(row[i * stride]));
  }
  most = block_reduce(most, lowest<C>(), Larger());
  // Where all are -inf, or one is inf, differences would be NaN; as on the CPU they are.
  C sum = 0;
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    sum += exp(static_cast<C>(row[i * stride]) - most);
  }
  return {most, log(block_reduce(sum, C{0}, Plus()))};
}

// Rows of two or three views of one shape: where they begin, and the stride of each along the axis.
template <int n>
struct Rows {
  Indexer<n> first;
  int64_t stride[n];
  int64_t count;
  int64_t size;
};

template <int n>
Rows<n> make_rows(const View* const (&views)[n], int64_t axis, std::string_view op) {
  Rows<n> out = {};
  const View& y = *views[n - 1];
  out.size = y.shape.empty() ? 1 : y.shape[static_cast<size_t>(axis)];
  out.count = y.numel() / out.size;
  Shape others;
  for (size_t d = 0; d < y.shape.size(); ++d) {
    if (static_cast<int64_t>(d) != axis && y.shape[d] != 1)
      others.push_back(static_cast<int64_t>(d));
  }
  out.first = cuda::make_indexer(views, others, op);
  for (int k = 0; k < n; ++k) {
    out.stride[k] = y.shape.empty() ? 1 : views[k]->strides[static_cast<size_t>(axis)];
  }
  return out;
}

template <class T, bool kLog>
__global__ void __launch_bounds__(kThreads) softmax_kernel(const T* x, T* y, Rows<2> rows) {
  using C = Wide<T>;
  for (int64_t r = blockIdx.x; r < rows.count; r += gridDim.x) {
    const auto at = rows.first.locate(r);
    const T* in = x + at.at[0];
    T* out = y + at.at[1];
    const LogSum<C> s = log_sum_of(in, rows.stride[0], rows.size);
    for (int64_t i = threadIdx.x; i < rows.size; i += kThreads) {
      const C log_y = (static_cast<C>(in[i * rows.stride[0]]) - s.largest) - s.log_sum;
      out[i * rows.stride[1]] = static_cast<T>(kLog ? log_y : exp(log_y));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) log_sum_exp_kernel(const T* x, T* y, Rows<2> rows) {
  using C = Wide<T>;
  for (int64_t r = blockIdx.x; r < rows.count; r += gridDim.x) {
    const auto at = rows.first.locate(r);
    const T* in = x + at.at[0];
    const LogSum<C> s = log_sum_of(in, rows.stride[0], rows.size);
    C out = s.largest + s.log_sum;
    if (abs(s.largest) == -lowest<C>()) {
      // Relative to an infinity there was nothing but NaN: only one that was there counts.
      C nan = 0;
      for (int64_t i = threadIdx.x; i < rows.size; i += kThreads) {
        const C v = static_cast<C>(in[i * rows.stride[0]]);
        if (v != v) nan = v;
      }
      out = s.largest + block_reduce(nan, C{0}, Plus());
    }
    if (threadIdx.x == 0) y[at.at[1]] = static_cast<T>(out);
  }
}

template <class T, bool kLog>
__global__ void __launch_bounds__(kThreads)
    softmax_backward_kernel(const T* g, const T* y, T* gx, Rows<3> rows) {
  using C = Wide<T>;
  for (int64_t r = blockIdx.x; r < rows.count; r += gridDim.x) {
    const auto at = rows.first.locate(r);
    const T* g_row = g + at.at[0];
    const T* y_row = y + at.at[1];
    C sum = 0;
    for (int64_t i = threadIdx.x; i < rows.size; i += kThreads) {
      const C gi = static_cast<C>(g_row[i * rows.stride[0]]);
      sum += kLog ? gi : gi * static_cast<C>(y_row[i * rows.stride[1]]);
    }
    sum = block_reduce(sum, C{0}, Plus());
    for (int64_t i = threadIdx.x; i < rows.size; i += kThreads) {
      const C gi = static_cast<C>(g_row[i * rows.stride[0]]);
      const C yi = static_cast<C>(y_row[i * rows.stride[1]]);
      gx[at.at[2] + i * rows.stride[2]] =
          static_cast<T>(kLog ? gi - exp(yi) * sum : yi * (gi - sum));
    }
  }
}

template <bool kLog>
void forward(const View& x, const View& y, int64_t axis, std::string_view op) {
  if (y.numel() == 0) return;
  visit_floating(y.dtype, op, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const View* const views[2] = {&x, &y};
    const Rows<2> rows = make_rows(views, axis, op);
    cuda::launch_kernel(cuda::grid_for(rows.count, 1), dim3(kThreads), softmax_kernel<T, kLog>,
                        static_cast<const T*>(x.data), y.as<T>(), rows);
  });
}

template <bool kLog>
void backward(const View& g, const View& y, const View& gx, int64_t axis, std::string_view op) {
  if (gx.numel() == 0) return;
  visit_floating(y.dtype, op, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const View* const views[3] = {&g, &y, &gx};
    const Rows<3> rows = make_rows(views, axis, op);
    cuda::launch_kernel(cuda::grid_for(rows.count, 1), dim3(kThreads),
                        softmax_backward_kernel<T, kLog>, static_cast<const T*>(g.data),
                        static_cast<const T*>(y.data), gx.as<T>(), rows);
  });
}

// The views of one cross-entropy: logits (N, C), the rest (N).
struct Strides2 {
  int64_t rows;
  int64_t classes;
  int64_t logits[2];
  int64_t targets;
  int64_t losses;
  int64_t lse;
  int64_t g;
  int64_t glogits[2];
  int64_t ignore_index;
};

struct NoClass {
  const int64_t* targets;
  Strides2 s;
  __device__ bool operator()(int64_t n) const {
    const int64_t t = targets[n * s.targets];
    return (t < 0 || t >= s.classes) && t != s.ignore_index;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(const T* logits, const int64_t* targets, T* losses, T* lse, Strides2 s) {
  using C = Wide<T>;
  for (int64_t n = blockIdx.x; n < s.rows; n += gridDim.x) {
    const T* row = logits + n * s.logits[0];
    const LogSum<C> sum = log_sum_of(row, s.logits[1], s.classes);
    if (threadIdx.x == 0) {
      const int64_t t = targets[n * s.targets];
      lse[n * s.lse] = static_cast<T>(sum.largest + sum.log_sum);
      losses[n * s.losses] =
          t == s.ignore_index
              ? static_cast<T>(C{0})
              : static_cast<T>(sum.log_sum - (static_cast<C>(row[t * s.logits[1]]) - sum.largest));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_backward_kernel(const T* logits, const int64_t* targets, const T* lse, const T* g,
                                  T* glogits, Strides2 s) {
  using C = Wide<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < s.rows * s.classes;
       i += step) {
    const int64_t n = i / s.classes;
    const int64_t c = i % s.classes;
    const int64_t t = targets[n * s.targets];
    C out = 0;
    if (t != s.ignore_index) {
      const C p = exp(static_cast<C>(logits[n * s.logits[0] + c * s.logits[1]]) -
                      static_cast<C>(lse[n * s.lse]));
      out = static_cast<C>(g[n * s.g]) * (p - static_cast<C>(c == t ? 1 : 0));
    }
    glogits[n * s.glogits[0] + c * s.glogits[1]] = static_cast<T>(out);
  }
}

// Throws unless every target is a class or ignored.
void check_targets(const View& targets, const Strides2& s) {
  const NoClass wrong = {targets.as<int64_t>(), s};
  const int64_t row = cuda::find_first(s.rows, wrong, targets.device);
  if (row < 0) return;
  const int64_t target = cuda::element_at<int64_t>(targets, row * s.targets);
  check(false, "cross_entropy", [&] {
    return str_cat("want targets in [0, ", s.classes, ") or ", s.ignore_index,
                   ", the one to ignore; row ", row, " has ", target);
  });
}

Strides2 strides_of(const View& logits, const View& targets, int64_t ignore_index) {
  Strides2 s = {};
  s.rows = logits.shape[0];
  s.classes = logits.shape[1];
  s.logits[0] = logits.strides[0];
  s.logits[1] = logits.strides[1];
  s.targets = targets.strides[0];
  s.ignore_index = ignore_index;
  return s;
}

}  // namespace

void Softmax::cuda(const View& x, const View& y, int64_t axis) {
  forward<false>(x, y, axis, "softmax");
}
void LogSoftmax::cuda(const View& x, const View& y, int64_t axis) {
  forward<true>(x, y, axis, "log_softmax");
}
void SoftmaxBackward::cuda(const View& g, const View& y, const View& gx, int64_t axis) {
  backward<false>(g, y, gx, axis, "softmax");
}
void LogSoftmaxBackward::cuda(const View& g, const View& y, const View& gx, int64_t axis) {
  backward<true>(g, y, gx, axis, "log_softmax");
}

void LogSumExp::cuda(const View& x, const View& y, int64_t axis) {
  if (y.numel() == 0) return;
  visit_floating(y.dtype, "logsumexp", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const View lines = cuda::line_starts(y, x.shape, axis);
    const View* const views[2] = {&x, &lines};
    const Rows<2> rows = make_rows(views, axis, "logsumexp");
    cuda::launch_kernel(cuda::grid_for(rows.count, 1), dim3(kThreads), log_sum_exp_kernel<T>,
                        static_cast<const T*>(x.data), y.as<T>(), rows);
  });
}

void CrossEntropy::cuda(const View& logits, const View& targets, int64_t ignore_index,
                        const View& losses, const View& lse) {
  if (logits.shape[0] == 0) return;
  Strides2 s = strides_of(logits, targets, ignore_index);
  s.losses = losses.strides[0];
  s.lse = lse.strides[0];
  check_targets(targets, s);
  visit_floating(logits.dtype, "cross_entropy", [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::launch_kernel(cuda::grid_for(s.rows, 1), dim3(kThreads), cross_entropy_kernel<T>,
                        static_cast<const T*>(logits.data),
                        static_cast<const int64_t*>(targets.data), losses.as<T>(), lse.as<T>(), s);
  });
}

void CrossEntropyBackward::cuda(const View& logits, const View& targets, int64_t ignore_index,
                                const View& lse, const View& g, const View& glogits) {
  if (logits.numel() == 0) return;
  Strides2 s = strides_of(logits, targets, ignore_index);
  s.lse = lse.strides[0];
  s.g = g.strides[0];
  s.glogits[0] = glogits.strides[0];
  s.glogits[1] = glogits.strides[1];
  visit_floating(logits.dtype, "cross_entropy", [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::launch_kernel(cuda::grid_for(logits.numel()), dim3(kThreads),
                        cross_entropy_backward_kernel<T>, static_cast<const T*>(logits.data),
                        static_cast<const int64_t*>(targets.data), static_cast<const T*>(lse.data),
                        static_cast<const T*>(g.data), glogits.as<T>(), s);
  });
}

}  // namespace lockstep::kernels
