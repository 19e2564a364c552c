#include "lockstep/kernels/attention.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cpu/lane_sum.h"
#include "lockstep/kernels/cpu/staged.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/philox.h"
#include "lockstep/kernels/vector_math.h"

// The work is cut into blocks: some heads with all their queries where a head's weights are few,
// else some queries of one head. Products are oneDNN's, batched over the heads of a block; what is
// between them runs over a block of weights that fits the second-level cache.
namespace lockstep::kernels {
namespace {

constexpr int64_t kBlock = 65536;  // weights of a block, where one query does not have more
constexpr int64_t kGrain = 8192;   // weights that are worth a thread

// A view (…, H, R, C), R rows of C for each of the heads, of which 3-dimensional parts are taken.
class Heads {
 public:
  explicit Heads(const View& view) : view_(view) {
    if (view_.dim() == 2) {
      view_.shape.insert(view_.shape.begin(), 1);
      view_.strides.insert(view_.strides.begin(), 0);
    }
  }

  // How many groups of heads there are: the product of the dimensions before H.
  int64_t groups() const {
    int64_t out = 1;
    for (size_t d = 0; d + 3 < view_.shape.size(); ++d) out *= view_.shape[d];
    return out;
  }
  int64_t heads() const { return from_end(view_.shape, 3); }
  int64_t rows() const { return from_end(view_.shape, 2); }
  int64_t columns() const { return view_.shape.back(); }

  // Rows [row, row + rows) of heads [head, head + heads) of a group: (heads, rows, columns), with
  // the first `columns` columns.
  View part(int64_t group, int64_t head, int64_t heads, int64_t row, int64_t rows,
            int64_t columns) const {
    int64_t offset = head * from_end(view_.strides, 3) + row * from_end(view_.strides, 2);
    for (size_t d = view_.shape.size() - 3; d-- > 0;) {
      offset += group % view_.shape[d] * view_.strides[d];
      group /= view_.shape[d];
    }
    View out = view_;
    out.data = view_.as<char>() + offset * static_cast<int64_t>(size_of(view_.dtype));
    out.shape = {heads, rows, columns};
    out.strides = Strides(view_.strides.end() - 3, view_.strides.end());
    return out;
  }

 private:
  static int64_t from_end(const Shape& numbers, size_t place) {
    return numbers[numbers.size() - place];
  }

  View view_;
};

View transposed(View x) {
  std::swap(x.shape[1], x.shape[2]);
  std::swap(x.strides[1], x.strides[2]);
  return x;
}

// Memory for (heads, rows, columns) lanes.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t elements)
      : memory_(allocate(static_cast<size_t>(elements) * sizeof(T))) {}

  T* data() const { return static_cast<T*>(memory_.get()); }
  View view(int64_t heads, int64_t rows, int64_t columns) const {
    const Shape shape = {heads, rows, columns};
    return {data(), dtype_of<T>(), kCpu, shape, contiguous_strides(shape)};
  }

 private:
  std::shared_ptr<void> memory_;
};

// A tensor as the loops read it: in lanes, the columns of a row side by side. Other memory is
// copied.
template <class T>
class Operand {
 public:
  explicit Operand(const View& view) : view_(view) {
    if (view.dtype == dtype_of<T>() && (view.strides.back() == 1 || view.shape.back() == 1)) return;
    const Strides strides = contiguous_strides(view.shape);
    staged_ = std::make_unique<StagedInput>(view, strides);
    view_ = {const_cast<T*>(staged_->as<T>()), dtype_of<T>(), view.device, view.shape, strides};
  }
  const View& view() const { return view_; }

 private:
  std::unique_ptr<StagedInput> staged_;
  View view_;
};

// The same for what is written; the view's own memory is used where its columns are side by side.
template <class T>
class Result {
 public:
  explicit Result(const View& view)
      : staged_(view, fits(view) ? view.strides : contiguous_strides(view.shape)),
        view_{staged_.as<T>(), dtype_of<T>(), view.device, view.shape,
              fits(view) ? view.strides : contiguous_strides(view.shape)} {}
  const View& view() const { return view_; }
  void finish() const { staged_.finish(); }

 private:
  static bool fits(const View& view) {
    return view.dtype == dtype_of<T>() && (view.strides.back() == 1 || view.shape.back() == 1);
  }

  StagedOutput staged_;
  View view_;
};

// One block, and how many keys its queries see at most.
struct Block {
  int64_t group;
  int64_t head;
  int64_t heads;
  int64_t row;
  int64_t rows;
  int64_t keys;
};

struct Sizes {
  int64_t groups;
  int64_t heads;
  int64_t queries;
  int64_t keys;
};

// Blocks of `sizes`, those with the most keys first; they depend on the sizes alone.
struct Blocks {
  Blocks(const Sizes& sizes, bool is_causal) {
    const int64_t row_size = std::max<int64_t>(1, sizes.keys);
    rows = std::clamp<int64_t>(kBlock / row_size, 1, std::max<int64_t>(1, sizes.queries));
    heads = rows < sizes.queries ? 1
                                 : std::clamp<int64_t>(kBlock / (row_size * rows), 1,
                                                       std::max<int64_t>(1, sizes.heads));
    for (int64_t group = 0; group < sizes.groups; ++group) {
      for (int64_t head = 0; head < sizes.heads; head += heads) {
        for (int64_t row = (sizes.queries - 1) / rows * rows; row >= 0; row -= rows) {
          const int64_t count = std::min(rows, sizes.queries - row);
          list.push_back({group, head, std::min(heads, sizes.heads - head), row, count,
                          is_causal ? std::min(sizes.keys, row + count) : sizes.keys});
        }
      }
    }
  }

  int64_t rows;   // at most, of a block
  int64_t heads;  // likewise
  std::vector<Block> list;
};

// One row of the weights of a block.
template <class T>
struct Row {
  int64_t place;  // among the rows of the block's heads
  int64_t index;  // among all rows of all heads
  int64_t seen;   // keys that are visible to it
  const T* bias;  // null for none; `bias_step` from key to key
  int64_t bias_step;
};

template <class T, class F>
void for_each_row(const Block& b, const Sizes& sizes, const Heads* bias, bool is_causal,
                  const F& f) {
  View part;
  if (bias != nullptr) part = bias->part(b.group, b.head, b.heads, b.row, b.rows, b.keys);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, b.keys));
  parallel_for(b.heads * b.rows, grain, [&](int64_t begin, int64_t end) {
    simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t h = i / b.rows;
        const int64_t r = i % b.rows;
        Row<T> row;
        row.place = i;
        row.index = (b.group * sizes.heads + b.head + h) * sizes.queries + b.row + r;
        row.seen = is_causal ? std::min(b.keys, b.row + r + 1) : b.keys;
        row.bias = nullptr;
        row.bias_step = 0;
        if (bias != nullptr) {
          row.bias = part.as<T>() + h * part.strides[0] + r * part.strides[1];
          row.bias_step = part.strides[2];
        }
        f(row);
      }
    });
  });
}

// x = scale x + bias, for the keys that are seen.
template <class T>
LOCKSTEP_INLINE void scale_row(T* x, const Row<T>& row, T scale) {
  const T* bias = row.bias;
  if (bias == nullptr) {
#pragma omp simd
    for (int64_t j = 0; j < row.seen; ++j) x[j] *= scale;
  } else if (row.bias_step == 1) {
#pragma omp simd
    for (int64_t j = 0; j < row.seen; ++j) x[j] = x[j] * scale + bias[j];
  } else {
    for (int64_t j = 0; j < row.seen; ++j) x[j] = x[j] * scale + bias[j * row.bias_step];
  }
}

// Softmax of the `seen` numbers at x in place. Returns the logarithm of the denominator.
template <class T>
LOCKSTEP_INLINE T softmax_row(T* x, int64_t seen) {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  T most = -kInf;
#pragma omp simd reduction(max : most)
  for (int64_t j = 0; j < seen; ++j) most = x[j] > most ? x[j] : most;
  // Where all are -inf (or NaN) zero stands in, which gives zeros (or NaN).
  const T base = most == -kInf ? T{0} : most;
#pragma omp simd
  for (int64_t j = 0; j < seen; ++j) x[j] = exp(x[j] - base);
  const T total = lane_sum<T>(seen, [=](int64_t j) LOCKSTEP_INLINE_LAMBDA { return x[j]; });
  const T inverse = total == T{0} ? T{0} : T{1} / total;
#pragma omp simd
  for (int64_t j = 0; j < seen; ++j) x[j] *= inverse;
  return total == T{0} ? kInf : base + log(total);
}

// 1 for the weights of a row that are kept, 0 for those that are dropped.
void draw(const AttentionOptions& o, int64_t index, int64_t all_keys, int64_t seen, float* keep) {
  const View view = {keep, DType::kF32, kCpu, {seen}, {1}};
  Bernoulli::cpu(view, 1 - o.dropout_p, o.seed, o.offset + static_cast<uint64_t>(index * all_keys));
}

template <class T>
void forward(const Heads& q, const Heads& k, const Heads& v, const Heads* bias,
             const AttentionOptions& o, const Heads& out, T* lse) {
  const Sizes sizes = {q.groups(), q.heads(), q.rows(), k.rows()};
  const Blocks blocks(sizes, o.is_causal);
  const Scratch<T> weights(blocks.heads * blocks.rows * sizes.keys);
  const Scratch<float> keep(o.dropout_p > 0 ? blocks.heads * blocks.rows * sizes.keys : 0);
  const T scale = static_cast<T>(o.scale);
  const T kept = static_cast<T>(1 / (1 - o.dropout_p));
  for (const Block& b : blocks.list) {
    const View w = weights.view(b.heads, b.rows, b.keys);
    const auto part = [&](const Heads& x, int64_t row, int64_t rows) {
      return x.part(b.group, b.head, b.heads, row, rows, x.columns());
    };
    MatMul::cpu(part(q, b.row, b.rows), transposed(part(k, 0, b.keys)), w, nullptr);
    for_each_row<T>(b, sizes, bias, o.is_causal, [&](const Row<T>& row) LOCKSTEP_INLINE_LAMBDA {
      T* x = weights.data() + row.place * b.keys;
      scale_row(x, row, scale);
      lse[row.index] = softmax_row(x, row.seen);
      std::fill(x + row.seen, x + b.keys, T{0});
      if (o.dropout_p == 0) return;
      float* d = keep.data() + row.place * b.keys;
      draw(o, row.index, sizes.keys, row.seen, d);
#pragma omp simd
      for (int64_t j = 0; j < row.seen; ++j) x[j] = d[j] != 0 ? x[j] * kept : T{0};
    });
    MatMul::cpu(w, part(v, 0, b.keys), part(out, b.row, b.rows), nullptr);
  }
}

template <class T>
void backward(const Heads& g, const Heads& q, const Heads& k, const Heads& v, const Heads* bias,
              const AttentionOptions& o, const Heads& out, const T* lse, const Heads& gq,
              const Heads& gk, const Heads& gv) {
  const Sizes sizes = {q.groups(), q.heads(), q.rows(), k.rows()};
  const Blocks blocks(sizes, o.is_causal);
  const int64_t most = blocks.heads * blocks.rows * sizes.keys;
  const Scratch<T> weights(most);
  const Scratch<T> slopes(most);  // gradients of the weights, then of the scores
  const Scratch<float> keep(o.dropout_p > 0 ? most : 0);
  // Keys get a part from every block of queries, unless there is only one.
  const bool in_parts = blocks.rows < sizes.queries;
  const Scratch<T> part_of_k(in_parts ? sizes.keys * k.columns() : 0);
  const Scratch<T> part_of_v(in_parts ? sizes.keys * v.columns() : 0);
  const T scale = static_cast<T>(o.scale);
  const T kept = static_cast<T>(1 / (1 - o.dropout_p));
  for (const Block& b : blocks.list) {
    const View w = weights.view(b.heads, b.rows, b.keys);
    const View s = slopes.view(b.heads, b.rows, b.keys);
    const auto part = [&](const Heads& x, int64_t row, int64_t rows) {
      return x.part(b.group, b.head, b.heads, row, rows, x.columns());
    };
    const View g_part = part(g, b.row, b.rows);
    const View out_part = part(out, b.row, b.rows);
    const View q_part = part(q, b.row, b.rows);
    const View k_part = part(k, 0, b.keys);
    MatMul::cpu(q_part, transposed(k_part), w, nullptr);
    MatMul::cpu(g_part, transposed(part(v, 0, b.keys)), s, nullptr);
    for_each_row<T>(b, sizes, bias, o.is_causal, [&](const Row<T>& row) LOCKSTEP_INLINE_LAMBDA {
      const int64_t h = row.place / b.rows;
      const int64_t r = row.place % b.rows;
      const T* gr = g_part.as<T>() + h * g_part.strides[0] + r * g_part.strides[1];
      const T* yr = out_part.as<T>() + h * out_part.strides[0] + r * out_part.strides[1];
      // The sum of weight times slope over the keys.
      const T mean =
          lane_sum<T>(v.columns(), [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { return gr[i] * yr[i]; });
      T* x = weights.data() + row.place * b.keys;
      T* d = slopes.data() + row.place * b.keys;
      const T base = lse[row.index];
      scale_row(x, row, scale);
#pragma omp simd
      for (int64_t j = 0; j < row.seen; ++j) x[j] = exp(x[j] - base);
      if (o.dropout_p == 0) {
#pragma omp simd
        for (int64_t j = 0; j < row.seen; ++j) d[j] = x[j] * (d[j] - mean) * scale;
      } else {
        float* kp = keep.data() + row.place * b.keys;
        draw(o, row.index, sizes.keys, row.seen, kp);
#pragma omp simd
        for (int64_t j = 0; j < row.seen; ++j) {
          const T factor = kp[j] != 0 ? kept : T{0};
          d[j] = x[j] * (d[j] * factor - mean) * scale;
          x[j] *= factor;
        }
      }
      std::fill(x + row.seen, x + b.keys, T{0});
      std::fill(d + row.seen, d + b.keys, T{0});
    });
    MatMul::cpu(s, k_part, part(gq, b.row, b.rows), nullptr);
    const auto add_keys = [&](const View& w_or_s, const View& rows, const Heads& to,
                              const Scratch<T>& sum) {
      const View target = part(to, 0, b.keys);
      const bool first = b.row + b.rows == sizes.queries;  // later blocks see no more keys
      if (first && b.keys < sizes.keys) Fill::cpu(part(to, b.keys, sizes.keys - b.keys), 0.0);
      if (first) return MatMul::cpu(transposed(w_or_s), rows, target, nullptr);
      const View more = sum.view(b.heads, b.keys, to.columns());
      MatMul::cpu(transposed(w_or_s), rows, more, nullptr);
      Binary<Add>::cpu(target, more, target);
    };
    add_keys(s, q_part, gk, part_of_k);
    add_keys(w, g_part, gv, part_of_v);
  }
}

}  // namespace

void Attention::cpu(const View& q, const View& k, const View& v, const View* bias,
                    const AttentionOptions& options, const View& out, const View& lse) {
  if (out.numel() == 0 && lse.numel() == 0) return;
  visit_lane(q.dtype, "scaled_dot_product_attention", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Operand<T> from_q(q);
    const Operand<T> from_k(k);
    const Operand<T> from_v(v);
    const Result<T> to(out);
    const std::unique_ptr<Heads> heads_of_bias = bias ? std::make_unique<Heads>(*bias) : nullptr;
    forward(Heads(from_q.view()), Heads(from_k.view()), Heads(from_v.view()), heads_of_bias.get(),
            options, Heads(to.view()), lse.as<T>());
    to.finish();
  });
}

void AttentionBackward::cpu(const View& g, const View& q, const View& k, const View& v,
                            const View* bias, const AttentionOptions& options, const View& out,
                            const View& lse, const View& gq, const View& gk, const View& gv) {
  visit_lane(q.dtype, "scaled_dot_product_attention", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Operand<T> from_g(g);
    const Operand<T> from_q(q);
    const Operand<T> from_k(k);
    const Operand<T> from_v(v);
    const Operand<T> from_out(out);
    const Result<T> to_q(gq);
    const Result<T> to_k(gk);
    const Result<T> to_v(gv);
    const std::unique_ptr<Heads> heads_of_bias = bias ? std::make_unique<Heads>(*bias) : nullptr;
    if (lse.numel() == 0 || k.numel() == 0) {
      for (const Result<T>* result : {&to_q, &to_k, &to_v}) Fill::cpu(result->view(), 0.0);
    }
    backward(Heads(from_g.view()), Heads(from_q.view()), Heads(from_k.view()), Heads(from_v.view()),
             heads_of_bias.get(), options, Heads(from_out.view()), lse.as<T>(), Heads(to_q.view()),
             Heads(to_k.view()), Heads(to_v.view()));
    for (const Result<T>* result : {&to_q, &to_k, &to_v}) result->finish();
  });
}

}  // namespace lockstep::kernels
