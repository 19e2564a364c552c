#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "lockstep/kernels/attention.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/philox.h"
#include "lockstep/kernels/philox_math.h"
#include "lockstep/kernels/vector_math.h"

// Attention in blocks (Dao et al., 2022): a block of threads takes a tile of rows of the result, 64
// by 64 elements (32 by 32 in f64), and walks the tiles of weights that it depends on, each of
// which is made in registers and is in shared memory while it is multiplied. Each element is added
// up by one thread, in one order. The widths of heads are walked in pieces of 16, and results wider
// than a tile are made in pieces of its width, which make the weights again.

// Before a loop whose counter picks elements of arrays that are to stay in registers: ptxas keeps
// arrays in memory where it does not unroll.
#ifdef __CUDACC__
#define LOCKSTEP_UNROLL _Pragma("unroll")
#else
#define LOCKSTEP_UNROLL
#endif

namespace lockstep::cuda::attention {

inline constexpr const char* kOp = "scaled_dot_product_attention";

// Threads stand as 16 by 16; thread (ty, tx) has elements (ty + 16 i, tx + 16 j) of a tile.
inline constexpr int kLine = 16;
static_assert(kLine * kLine == kThreads);
template <class C>
inline constexpr int kSide = sizeof(C) == 8 ? 32 : 64;  // of a tile
template <class C>
inline constexpr int kPer = kSide<C> / kLine;
// Elements from row to row in shared memory: neighbours in other banks.
template <class C>
inline constexpr int kPitch = kSide<C> + 1;
// How much of a sum is there at a time.
inline constexpr int kDepth = 16;

// A tile's elements of one thread.
template <class C>
struct Mine {
  C at[kPer<C>][kPer<C>] = {};
};

// One head's part of an operand.
template <class T>
struct Matrix {
  T* data;
  int64_t rows;
  int64_t columns;
  int64_t row_step;
  int64_t column_step;

  __device__ T& at(int64_t r, int64_t c) const { return data[r * row_step + c * column_step]; }
  __device__ Wide<std::remove_const_t<T>> read(int64_t r, int64_t c) const {
    using C = Wide<std::remove_const_t<T>>;
    return r < rows && c < columns ? static_cast<C>(at(r, c)) : C{0};
  }
};

// Over the threads of one ty, in each of them.
template <class T, class F>
__device__ T line_reduce(T value, const F& combine) {
  for (int o = kLine / 2; o > 0; o /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, o));
  }
  return value;
}

// sum += the products of rows from a_first on of a with rows from b_first on of b.
template <class C, class T>
__device__ void multiply_rows(Mine<C>& sum, const Matrix<T>& a, int64_t a_first, const Matrix<T>& b,
                              int64_t b_first, C* a_part, C* b_part) {
  const int tx = threadIdx.x % kLine, ty = threadIdx.x / kLine;
  for (int64_t e = 0; e < a.columns; e += kDepth) {
    for (int i = 0; i < kPer<C>; ++i) {  // tx along the columns: neighbours in memory
      const int r = ty + kLine * i;
      a_part[tx * kPitch<C> + r] = a.read(a_first + r, e + tx);
      b_part[tx * kPitch<C> + r] = b.read(b_first + r, e + tx);
    }
    __syncthreads();
    for (int d = 0; d < kDepth; ++d) {
      C x[kPer<C>], y[kPer<C>];
      for (int i = 0; i < kPer<C>; ++i) x[i] = a_part[d * kPitch<C> + ty + kLine * i];
      for (int j = 0; j < kPer<C>; ++j) y[j] = b_part[d * kPitch<C> + tx + kLine * j];
      for (int i = 0; i < kPer<C>; ++i) {
        for (int j = 0; j < kPer<C>; ++j) sum.at[i][j] += x[i] * y[j];
      }
    }
    __syncthreads();  // the parts have been read
  }
}

// sum += the product of a tile with as many rows of m from `row` on, columns from `column` on.
template <class C, class T>
__device__ void multiply_tile(Mine<C>& sum, const C* tile, const Matrix<T>& m, int64_t row,
                              int64_t column, C* part) {
  const int tx = threadIdx.x % kLine, ty = threadIdx.x / kLine;
  for (int k = 0; k < kSide<C> && row + k < m.rows; k += kDepth) {
    for (int i = 0; i < kPer<C>; ++i) {
      const int n = static_cast<int>(threadIdx.x) + static_cast<int>(kThreads) * i;
      const int r = n / kSide<C>, c = n % kSide<C>;
      part[r * kPitch<C> + c] = m.read(row + k + r, column + c);
    }
    __syncthreads();
    for (int d = 0; d < kDepth; ++d) {
      C x[kPer<C>], y[kPer<C>];
      for (int i = 0; i < kPer<C>; ++i) x[i] = tile[(ty + kLine * i) * kPitch<C> + k + d];
      for (int j = 0; j < kPer<C>; ++j) y[j] = part[d * kPitch<C> + tx + kLine * j];
      for (int i = 0; i < kPer<C>; ++i) {
        for (int j = 0; j < kPer<C>; ++j) sum.at[i][j] += x[i] * y[j];
      }
    }
    __syncthreads();  // tile and part have been read
  }
}

// What is read, and the one result that a launch writes.
enum Operand { kQ, kK, kV, kBias, kG, kResult, kOperands };

template <class T>
struct Problem {
  const T* in[kOperands];  // but for the bias
  const Wide<T>* bias;     // null for none
  T* result;
  Wide<T>* lse;
  const Wide<T>* means;  // of the backward
  Indexer<kOperands> heads;
  int64_t steps[kOperands][2];  // of rows, of columns
  int64_t head_count;
  int64_t queries;
  int64_t keys;
  int64_t features;
  int64_t columns;
  bool is_causal;
  bool drops;
  Wide<T> scale;
  Wide<T> kept_scale;
  uint64_t below;  // weights whose random number is not below it are dropped
  uint64_t seed;
  uint64_t offset;
};

// One head of a problem.
template <class T>
struct Head {
  using C = Wide<T>;
  const Problem<T>& p;
  int64_t number;
  typename Indexer<kOperands>::Offsets at;

  __device__ Head(const Problem<T>& problem, int64_t head)
      : p(problem), number(head), at(problem.heads.locate(head)) {}

  __device__ Matrix<const T> matrix(Operand k) const {
    const bool of_queries = k == kQ || k == kG;
    const bool of_features = k == kQ || k == kK;
    return {p.in[k] + at.at[k], of_queries ? p.queries : p.keys,
            of_features ? p.features : p.columns, p.steps[k][0], p.steps[k][1]};
  }
  __device__ Matrix<T> result(int64_t rows, int64_t columns) const {
    return {p.result + at.at[kResult], rows, columns, p.steps[kResult][0], p.steps[kResult][1]};
  }
  __device__ bool sees(int64_t query, int64_t key) const {
    return query < p.queries && key < p.keys && (!p.is_causal || key <= query);
  }
  // For a query that sees the key.
  __device__ C score(C product, int64_t query, int64_t key) const {
    const C scaled = product * p.scale;
    if (p.bias == nullptr) return scaled;
    return scaled + p.bias[at.at[kBias] + query * p.steps[kBias][0] + key * p.steps[kBias][1]];
  }
  // What dropout multiplies the weight by.
  __device__ C factor(int64_t query, int64_t key) const {
    if (!p.drops) return 1;
    const uint64_t i =
        p.offset + static_cast<uint64_t>((number * p.queries + query) * p.keys + key);
    const auto words =
        kernels::philox4x32({static_cast<uint32_t>(i >> 1), static_cast<uint32_t>(i >> 33), 0, 0},
                            {static_cast<uint32_t>(p.seed), static_cast<uint32_t>(p.seed >> 32)});
    const uint64_t bits =
        i % 2 == 0 ? words[0] | uint64_t{words[1]} << 32 : words[2] | uint64_t{words[3]} << 32;
    return bits < p.below ? p.kept_scale : C{0};
  }
};

// The share of a block at a time: rows of a head, and a piece of the result's columns.
struct Item {
  int64_t head;
  int64_t row;
  int64_t column;
};
template <class C>
__host__ __device__ int64_t items_of(int64_t heads, int64_t rows, int64_t columns) {
  const int64_t pieces = columns > kSide<C> ? (columns + kSide<C> - 1) / kSide<C> : 1;
  const int64_t tiles = (rows + kSide<C> - 1) / kSide<C>;
  return heads * tiles * pieces;
}
template <class C>
__device__ Item item_at(int64_t i, int64_t rows, int64_t columns) {
  const int64_t pieces = items_of<C>(1, 1, columns);
  const int64_t tiles = items_of<C>(1, rows, 0);
  return {i / pieces / tiles, i / pieces % tiles * kSide<C>, i % pieces * kSide<C>};
}

// A null bias or g is one that the launch does not look at.
template <class T>
Problem<T> make_problem(const View& q, const View& k, const View& v, const View* bias,
                        const View* g, const kernels::AttentionOptions& o, const View& lse,
                        const View& result) {
  using C = Wide<T>;
  const View* const views[kOperands] = {&q, &k, &v, bias ? bias : &q, g ? g : &q, &result};
  Problem<T> p = {};
  for (int i = 0; i < kOperands; ++i) {
    p.in[i] = static_cast<const T*>(views[i]->data);
    p.steps[i][0] = *(views[i]->strides.end() - 2);
    p.steps[i][1] = views[i]->strides.back();
  }
  p.bias = bias ? bias->as<C>() : nullptr;
  p.result = result.as<T>();
  p.lse = lse.as<C>();
  p.heads = make_indexer(views, row_major_order(q.shape, 0, q.shape.size() - 2), kOp);
  p.queries = *(q.shape.end() - 2);
  p.keys = *(k.shape.end() - 2);
  p.features = q.shape.back();
  p.columns = v.shape.back();
  p.head_count = 1;
  for (size_t d = 0; d + 2 < q.shape.size(); ++d) p.head_count *= q.shape[d];
  p.is_causal = o.is_causal;
  const kernels::Threshold kept = kernels::threshold_of(1 - o.dropout_p);
  p.drops = !kept.always;
  p.below = kept.below;
  p.scale = static_cast<C>(o.scale);
  p.kept_scale = static_cast<C>(1 / (1 - o.dropout_p));
  p.seed = o.seed;
  p.offset = o.offset;
  return p;
}

template <class T>
void run(void (*kernel)(Problem<T>), const Problem<T>& p, int64_t rows, int64_t columns) {
  const int64_t items = items_of<Wide<T>>(p.head_count, rows, columns);
  if (items == 0) return;
  // More blocks than there is room for: their shares are not alike where attention is causal.
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(items, 1 << 30));
  launch_kernel(dim3(blocks), dim3(kThreads), kernel, p);
}

}  // namespace lockstep::cuda::attention
