// Attention's gradients; attention.cuh says how. The weights are made again from lse, once for each
// of gq, gk and gv. For H heads of L by S weights, multiply-adds are H L S (5 E + 3 D) for E and D
// up to 64, half of it where causal; k and v are read once for each 64 queries, q and g twice for
// each 64 keys.
#include "lockstep/kernels/cuda/attention.cuh"
#include "lockstep/kernels/memory.h"

namespace lockstep::kernels {
namespace {

using namespace cuda::attention;  // NOLINT: the half of this kernel that forward shares
using cuda::Indexer;
using cuda::kThreads;
using cuda::Plus;
using cuda::Wide;

// means[row] = the sum of g out along a row, which is that of weight times slope over the keys. A
// warp takes a row. Operands: g, out.
template <class T>
__global__ void __launch_bounds__(kThreads)
    mean_kernel(const T* g, const T* out, Indexer<2> rows, int64_t g_step, int64_t out_step,
                int64_t columns, int64_t count, Wide<T>* means) {
  using C = Wide<T>;
  const unsigned lane = threadIdx.x % cuda::kWarp;
  const int64_t step = int64_t{gridDim.x} * (kThreads / cuda::kWarp);
  for (int64_t row = int64_t{blockIdx.x} * (kThreads / cuda::kWarp) + threadIdx.x / cuda::kWarp;
       row < count; row += step) {
    const auto at = rows.locate(row);
    C sum = 0;
    for (int64_t c = lane; c < columns; c += cuda::kWarp) {
      sum +=
          static_cast<C>(g[at.at[0] + c * g_step]) * static_cast<C>(out[at.at[1] + c * out_step]);
    }
    sum = cuda::warp_reduce(sum, Plus());
    if (lane == 0) means[row] = sum;
  }
}

// gq (of queries, with slopes), gk (of keys, with slopes) or gv (of keys, with weights). The rows
// of a tile are those of the result, its columns keys or queries that they depend on.
// Without a number of blocks ptxas spills rather than give a thread more than 128 registers.
template <class T, bool kOfKeys, bool kSlopes>
__global__ void __launch_bounds__(kThreads, 1) attention_backward_kernel(Problem<T> p) {
  using C = Wide<T>;
  LOCKSTEP_SHARED(C, a_part, kDepth * kPitch<C>);
  LOCKSTEP_SHARED(C, b_part, kDepth * kPitch<C>);
  LOCKSTEP_SHARED(C, tile, kSide<C> * kPitch<C>);
  const int tx = threadIdx.x % kLine, ty = threadIdx.x / kLine;
  const int64_t rows = kOfKeys ? p.keys : p.queries;
  const int64_t columns = kSlopes ? p.features : p.columns;
  const int64_t items = items_of<C>(p.head_count, rows, columns);
  for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
    // Those that depend on the most come first: the last queries, the first keys.
    const Item item = item_at<C>(kOfKeys ? i : items - 1 - i, rows, columns);
    const Head<T> head(p, item.head);
    const C* lse = p.lse + item.head * p.queries;
    const C* means = p.means + item.head * p.queries;
    // A key is seen by queries from its own place on, a query sees keys up to its own.
    const int64_t begin = kOfKeys && p.is_causal ? item.row : 0;
    int64_t end = kOfKeys ? p.queries : p.keys;
    if (!kOfKeys && p.is_causal && item.row + kSide<C> < end) end = item.row + kSide<C>;
    Mine<C> out;
    for (int64_t first = begin; first < end; first += kSide<C>) {
      Mine<C> scores, slopes;
      multiply_rows(scores, head.matrix(kOfKeys ? kK : kQ), item.row,
                    head.matrix(kOfKeys ? kQ : kK), first, a_part, b_part);
      if constexpr (kSlopes) {
        multiply_rows(slopes, head.matrix(kOfKeys ? kV : kG), item.row,
                      head.matrix(kOfKeys ? kG : kV), first, a_part, b_part);
      }
      LOCKSTEP_UNROLL
      for (int r = 0; r < kPer<C>; ++r) {
        LOCKSTEP_UNROLL
        for (int c = 0; c < kPer<C>; ++c) {
          const int64_t row = item.row + ty + kLine * r;
          const int64_t column = first + tx + kLine * c;
          const int64_t query = kOfKeys ? column : row;
          const int64_t key = kOfKeys ? row : column;
          C value = 0;
          if (head.sees(query, key)) {
            const C weight = exp(head.score(scores.at[r][c], query, key) - lse[query]);
            const C factor = head.factor(query, key);
            value = kSlopes ? weight * (slopes.at[r][c] * factor - means[query]) * p.scale
                            : weight * factor;
          }
          tile[(ty + kLine * r) * kPitch<C> + tx + kLine * c] = value;
        }
      }
      multiply_tile(out, tile, head.matrix(!kOfKeys ? kK : (kSlopes ? kQ : kG)), first, item.column,
                    b_part);
    }
    const Matrix<T> result = head.result(rows, columns);
    LOCKSTEP_UNROLL
    for (int r = 0; r < kPer<C>; ++r) {
      LOCKSTEP_UNROLL
      for (int c = 0; c < kPer<C>; ++c) {
        const int64_t row = item.row + ty + kLine * r;
        const int64_t column = item.column + tx + kLine * c;
        if (row < rows && column < columns) result.at(row, column) = static_cast<T>(out.at[r][c]);
      }
    }
  }
}

}  // namespace

void AttentionBackward::cuda(const View& g, const View& q, const View& k, const View& v,
                             const View* bias, const AttentionOptions& options, const View& out,
                             const View& lse, const View& gq, const View& gk, const View& gv) {
  visit_floating(q.dtype, kOp, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto means = allocate(static_cast<size_t>(lse.numel()) * sizeof(Wide<T>), q.device);
    if (lse.numel() > 0) {
      const View* const both[2] = {&g, &out};
      const int64_t count = lse.numel();
      cuda::launch_kernel(
          cuda::grid_for(count, kThreads / cuda::kWarp), dim3(kThreads), mean_kernel<T>,
          static_cast<const T*>(g.data), static_cast<const T*>(out.data),
          cuda::make_indexer(both, cuda::row_major_order(g.shape, 0, g.shape.size() - 1), kOp),
          g.strides.back(), out.strides.back(), g.shape.back(), count,
          static_cast<Wide<T>*>(means.get()));
    }
    const auto problem = [&](const View& result) {
      Problem<T> p = make_problem<T>(q, k, v, bias, &g, options, lse, result);
      p.means = static_cast<const Wide<T>*>(means.get());
      return p;
    };
    const Problem<T> of_q = problem(gq);
    run(attention_backward_kernel<T, false, true>, of_q, of_q.queries, of_q.features);
    run(attention_backward_kernel<T, true, true>, problem(gk), of_q.keys, of_q.features);
    run(attention_backward_kernel<T, true, false>, problem(gv), of_q.keys, of_q.columns);
  });
}

}  // namespace lockstep::kernels
