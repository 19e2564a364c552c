// Attention forward, with a running maximum and denominator; attention.cuh says how. For H heads of
// L by S weights with E features and D columns of v, multiply-adds are H L S (E ceil(D / 64) + D),
// half of it where causal; k and v are read once for each 64 queries.
#include "lockstep/kernels/cuda/attention.cuh"

namespace lockstep::kernels {
namespace {

using namespace cuda::attention;  // NOLINT: the half of this kernel that backward shares
using cuda::kThreads;
using cuda::Plus;
using cuda::Wide;

template <class T>
__global__ void __launch_bounds__(kThreads, 2) attention_kernel(Problem<T> p) {
  using C = Wide<T>;
  constexpr C kInf = std::numeric_limits<C>::infinity();
  LOCKSTEP_SHARED(C, a_part, kDepth * kPitch<C>);
  LOCKSTEP_SHARED(C, b_part, kDepth * kPitch<C>);
  LOCKSTEP_SHARED(C, tile, kSide<C> * kPitch<C>);
  const auto larger = [](C a, C b) { return b > a ? b : a; };
  const int tx = threadIdx.x % kLine, ty = threadIdx.x / kLine;
  const int64_t items = items_of<C>(p.head_count, p.queries, p.columns);
  for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
    // The last queries see the most keys: they come first.
    const Item item = item_at<C>(items - 1 - i, p.queries, p.columns);
    const Head<T> head(p, item.head);
    const Matrix<const T> q = head.matrix(kQ), k = head.matrix(kK), v = head.matrix(kV);
    const int64_t last = item.row + kSide<C>;
    const int64_t seen = p.is_causal && last < p.keys ? last : p.keys;
    Mine<C> out;
    C most[kPer<C>], total[kPer<C>];
    LOCKSTEP_UNROLL
    for (int r = 0; r < kPer<C>; ++r) {
      most[r] = -kInf;
      total[r] = 0;
    }
    for (int64_t first = 0; first < seen; first += kSide<C>) {
      Mine<C> scores;
      multiply_rows(scores, q, item.row, k, first, a_part, b_part);
      LOCKSTEP_UNROLL
      for (int r = 0; r < kPer<C>; ++r) {
        const int64_t query = item.row + ty + kLine * r;
        C here = -kInf;  // a NaN need not be kept: it comes back from exp
        LOCKSTEP_UNROLL
        for (int c = 0; c < kPer<C>; ++c) {
          C& s = scores.at[r][c];
          const int64_t key = first + tx + kLine * c;
          s = head.sees(query, key) ? head.score(s, query, key) : -kInf;
          here = larger(here, s);
        }
        const C next = larger(most[r], line_reduce(here, larger));
        // Where all are -inf (or NaN) zero stands in, which gives zeros (or NaN).
        const C base = next == -kInf ? C{0} : next;
        const C shrink = exp(most[r] - base);
        C sum = 0;
        LOCKSTEP_UNROLL
        for (int c = 0; c < kPer<C>; ++c) {
          const int64_t key = first + tx + kLine * c;
          const C weight = exp(scores.at[r][c] - base);
          sum += weight;
          tile[(ty + kLine * r) * kPitch<C> + tx + kLine * c] = weight * head.factor(query, key);
          out.at[r][c] *= shrink;
        }
        total[r] = total[r] * shrink + line_reduce(sum, Plus());
        most[r] = next;
      }
      multiply_tile(out, tile, v, first, item.column, b_part);
    }
    const Matrix<T> result = head.result(p.queries, p.columns);
    LOCKSTEP_UNROLL
    for (int r = 0; r < kPer<C>; ++r) {
      const int64_t query = item.row + ty + kLine * r;
      if (query >= p.queries) continue;
      const C inverse = total[r] == C{0} ? C{0} : C{1} / total[r];
      LOCKSTEP_UNROLL
      for (int c = 0; c < kPer<C>; ++c) {
        const int64_t column = item.column + tx + kLine * c;
        if (column < p.columns) result.at(query, column) = static_cast<T>(out.at[r][c] * inverse);
      }
      if (item.column == 0 && tx == 0) {
        p.lse[item.head * p.queries + query] =
            total[r] == C{0} ? kInf : (most[r] == -kInf ? C{0} : most[r]) + log(total[r]);
      }
    }
  }
}

}  // namespace

void Attention::cuda(const View& q, const View& k, const View& v, const View* bias,
                     const AttentionOptions& options, const View& out, const View& lse) {
  if (out.numel() == 0 && lse.numel() == 0) return;
  visit_floating(q.dtype, kOp, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Problem<T> p = make_problem<T>(q, k, v, bias, nullptr, options, lse, out);
    run(attention_kernel<T>, p, p.queries, p.columns);
  });
}

}  // namespace lockstep::kernels
