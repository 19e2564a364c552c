// Reductions, in two shapes of loop: along memory (one result from a contiguous run) and across it
// (a row of results, each from a column). Both keep several partial results, so that they vectorise
// and so that a sum's error grows slowly.

#include "lockstep/kernels/reduce.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/cpu/past_cache.h"
#include "lockstep/kernels/cpu/reduce_plan.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

// Rows that are reduced one after the other before partial results are merged in a tree.
constexpr int64_t kLeaf = 64;
// Results side by side that a reduction across memory keeps in the first-level cache: runs that are
// long enough for the processor to fetch what follows them. Of 4096 by 4096, 256 took 1.7 times
// (sum) and 3 times (max) as long.
constexpr int64_t kColumns = 2048;
// Of these, what is taken while as much of rows to come is fetched.
constexpr int64_t kPiece = 256;

// How elements are joined. A is the type of results; join() must be associative but for rounding.
template <class A>
struct SumRule {
  static constexpr A kIdentity = 0;
  static LOCKSTEP_INLINE A join(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
};

template <class A>
struct ProdRule {
  static constexpr A kIdentity = 1;
  static LOCKSTEP_INLINE A join(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

template <class A>
constexpr A lowest() {
  if constexpr (std::is_floating_point_v<A>) return -std::numeric_limits<A>::infinity();
  return std::numeric_limits<A>::lowest();
}

template <class A>
constexpr A highest() {
  if constexpr (std::is_floating_point_v<A>) return std::numeric_limits<A>::infinity();
  return std::numeric_limits<A>::max();
}

// The extreme rules choose twice: of one choice by two conditions the compiler makes jumps where a
// or b is itself a choice, and no vectors.
template <class A>
struct MaxRule {
  static constexpr A kIdentity = lowest<A>();
  static LOCKSTEP_INLINE A join(A a, A b) {
    const A larger = a > b ? a : b;
    return a == a ? larger : a;
  }
};

template <class A>
struct MinRule {
  static constexpr A kIdentity = highest<A>();
  static LOCKSTEP_INLINE A join(A a, A b) {
    const A smaller = a < b ? a : b;
    return a == a ? smaller : a;
  }
};

// Joins n elements at a stride. Partial results stand side by side in `part`, which the compiler
// keeps in vector registers.
template <class Rule, class T, class A>
A reduce_leaf(const T* x, int64_t stride, int64_t n) {
  constexpr int64_t kParts = 64 / static_cast<int64_t>(sizeof(A)) * 4;
  A result = Rule::kIdentity;
  if (n < kParts) {
    A other = Rule::kIdentity;  // two chains take half the time
    int64_t i = 0;
    for (; i + 2 <= n; i += 2) {
      result = Rule::join(result, static_cast<A>(x[i * stride]));
      other = Rule::join(other, static_cast<A>(x[(i + 1) * stride]));
    }
    if (i < n) result = Rule::join(result, static_cast<A>(x[i * stride]));
    return Rule::join(result, other);
  }
  simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
    A part[kParts];
    for (int64_t k = 0; k < kParts; ++k) part[k] = Rule::kIdentity;
    int64_t i = 0;
    if (stride == 1) {
      const T* from = x;
      const int64_t whole = n / kParts * kParts;
      for (; i < whole; i += kParts) {
#pragma omp simd
        for (int64_t k = 0; k < kParts; ++k) {
          part[k] = Rule::join(part[k], static_cast<A>(from[i + k]));
        }
      }
    }
    for (int64_t k = 0; i < n; ++i, k = (k + 1) % kParts) {
      part[k] = Rule::join(part[k], static_cast<A>(x[i * stride]));
    }
#pragma GCC unroll 8
    for (int64_t width = kParts / 2; width > 0; width /= 2) {
#pragma omp simd
      for (int64_t k = 0; k < width; ++k) part[k] = Rule::join(part[k], part[k + width]);
    }
    result = part[0];
  });
  return result;
}

// Pairwise: halves are joined, down to leaves that the loop above takes at once.
template <class Rule, class T, class A>
A reduce_run(const T* x, int64_t stride, int64_t n) {
  constexpr int64_t kRun = 2048;
  if (n <= kRun) return reduce_leaf<Rule, T, A>(x, stride, n);
  const int64_t half = n / 2 / kRun * kRun + (n / 2 < kRun ? kRun : 0);
  // In the order of memory, in which the processor fetches ahead: as arguments of join() GCC takes
  // the second half first, which takes three times as long.
  const A first = reduce_run<Rule, T, A>(x, stride, half);
  return Rule::join(first, reduce_run<Rule, T, A>(x + half * stride, stride, n - half));
}

// One result: all elements that go, from x on; elements [begin, end) of their walk.
template <class Rule, class T, class A>
A reduce_one(const T* x, const Walk& gone, int64_t begin, int64_t end) {
  if (gone.shape.size() <= 1) {
    const int64_t stride = gone.inner_stride();
    return reduce_run<Rule, T, A>(x + begin * stride, stride, end - begin);
  }
  // Runs are joined in a tree too: level k holds the join of 2^k of them.
  A level[64];
  uint64_t runs = 0;
  for_each_run(gone, begin, end - begin, [&](int64_t offset, int64_t length) {
    A value = reduce_run<Rule, T, A>(x + offset, gone.inner_stride(), length);
    int k = 0;
    for (uint64_t bits = runs++; bits & 1; bits >>= 1) value = Rule::join(level[k++], value);
    level[k] = value;
  });
  A result = Rule::kIdentity;
  for (int k = 0; runs >> k != 0; ++k) {
    if (runs >> k & 1) result = Rule::join(level[k], result);
  }
  return result;
}

// `width` results side by side in memory, from elements [begin, end) of the walk that goes. Rows
// are added up in a leaf, then leaves in a tree, column by column. `fetches`: x is in no cache yet.
template <class Rule, class T, class A>
void reduce_rows(const T* x, const Walk& gone, int64_t begin, int64_t end, int64_t width,
                 bool fetches, A* out) {
  alignas(64) A leaf[kColumns];
  const auto most = static_cast<uint64_t>((end - begin) / kLeaf);
  const auto levels = static_cast<int64_t>(std::bit_width(most));
  const auto memory = allocate(static_cast<size_t>(levels * width) * sizeof(A));
  const auto level = [&](int k) { return static_cast<A*>(memory.get()) + k * width; };
  uint64_t leaves = 0;
  int64_t in_leaf = 0;
  const auto join_into = [&](const A* from, A* to) {
    vector_loop(width,
                [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { to[i] = Rule::join(from[i], to[i]); });
  };
  const auto close_leaf = [&] {
    int k = 0;
    for (uint64_t bits = leaves++; bits & 1; bits >>= 1) join_into(level(k++), leaf);
    std::copy_n(leaf, width, level(k));
    std::fill_n(leaf, width, Rule::kIdentity);
    in_leaf = 0;
  };
  std::fill_n(leaf, width, Rule::kIdentity);
  const int64_t step = gone.inner_stride();
  for_each_run(gone, begin, end - begin, [&](int64_t offset, int64_t length) {
    for (int64_t i = 0; i < length;) {
      const int64_t count = std::min(length - i, kLeaf - in_leaf);
      const T* from = x + offset + i * step;
      simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
        A* to = leaf;
        const int64_t n = width;
        int64_t k = 0;
        for (; k + 4 <= count; k += 4) {  // four rows for one pass over the results
          const T* row = from + k * step;
          const auto value = [=](int64_t r, int64_t j) LOCKSTEP_INLINE_LAMBDA {
            return static_cast<A>(row[r * step + j]);
          };
          for (int64_t begin_j = 0; begin_j < n; begin_j += kPiece) {
            const int64_t end_j = std::min(n, begin_j + kPiece);
            for (int64_t r = 4; fetches && r < 8; ++r) {
              fetch_later(row + r * step + begin_j, end_j - begin_j);
            }
#pragma omp simd
            for (int64_t j = begin_j; j < end_j; ++j) {
              to[j] = Rule::join(to[j], Rule::join(Rule::join(value(0, j), value(1, j)),
                                                   Rule::join(value(2, j), value(3, j))));
            }
          }
        }
        for (; k < count; ++k) {
          const T* row = from + k * step;
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) to[j] = Rule::join(to[j], static_cast<A>(row[j]));
        }
      });
      i += count;
      in_leaf += count;
      if (in_leaf == kLeaf) close_leaf();
    }
  });
  for (int k = 0; leaves >> k != 0; ++k) {
    if (leaves >> k & 1) join_into(level(k), leaf);
  }
  std::copy_n(leaf, width, out);
}

// Elements of x as T are joined as A, which is what y holds.
template <class Rule, class T, class A>
void reduce_lanes(const View& x_view, const View& y_view) {
  const T* x = static_cast<const T*>(x_view.data);
  A* y = static_cast<A*>(y_view.data);
  const ReducePlan p = reduce_plan(x_view, y_view);
  const int64_t total = p.kept_count * p.gone_count;
  // Results that are neighbours in x are taken side by side, unless it is the other dimensions that
  // are contiguous.
  const bool across = !p.kept.empty() && p.kept_x.back() == 1 && p.gone.inner_stride() != 1;
  const int64_t inner = across ? p.kept.back() : 1;
  const int64_t threads = std::min<int64_t>(num_threads(), total / kReduceGrain);
  const int64_t widest = stripe_width(p.kept_count, threads, kColumns);
  const int64_t stripes = (inner + widest - 1) / widest;
  const int64_t jobs = p.kept_count / inner * stripes;
  const bool fetches = total * static_cast<int64_t>(sizeof(T)) >= kPastCacheBytes;
  const auto first_of = [&](int64_t job) { return job % stripes * widest; };
  const auto width_of = [&](int64_t job) { return std::min(widest, inner - first_of(job)); };
  const auto run = [&](int64_t job, int64_t begin, int64_t end, A* out) {
    const T* from = x + locate(p, job / stripes, across).x + first_of(job);
    if (across) {
      reduce_rows<Rule, T, A>(from, p.gone, begin, end, width_of(job), fetches, out);
    } else {
      out[0] = reduce_one<Rule, T, A>(from, p.gone, begin, end);
    }
  };
  const auto put = [&](int64_t job, const A* out) {
    const int64_t step = across ? p.kept_y.back() : 0;
    A* to = y + locate(p, job / stripes, across).y + first_of(job) * step;
    for (int64_t i = 0; i < width_of(job); ++i) to[i * step] = out[i];
  };
  if (jobs >= threads) {
    const int64_t grain = std::max<int64_t>(1, kReduceGrain / std::max<int64_t>(total / jobs, 1));
    parallel_for(jobs, grain, [&](int64_t first, int64_t last) {
      alignas(64) A out[kColumns];
      for (int64_t job = first; job < last; ++job) {
        run(job, 0, p.gone_count, out);
        put(job, out);
      }
    });
    return;
  }
  // Few results of many elements: each is cut into pieces, which are joined at the end.
  std::vector<A> parts(static_cast<size_t>(threads * kColumns));
  for (int64_t job = 0; job < jobs; ++job) {
    parallel_for(threads, 1, [&](int64_t first, int64_t last) {
      for (int64_t k = first; k < last; ++k) {
        run(job, p.gone_count * k / threads, p.gone_count * (k + 1) / threads,
            parts.data() + k * kColumns);
      }
    });
    for (int64_t k = 1; k < threads; ++k) {
      for (int64_t i = 0; i < width_of(job); ++i) {
        A& whole = parts[static_cast<size_t>(i)];
        whole = Rule::join(whole, parts[static_cast<size_t>(k * kColumns + i)]);
      }
    }
    put(job, parts.data());
  }
}

// Sums and products.
template <template <class> class Rule>
void accumulate(const View& x, const View& y) {
  if (y.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (is_reduced_float_v<T>) {
      const Wide from(x);
      const Wide to(y);
      Copy::cpu(x, from.view);
      reduce_lanes<Rule<float>, float, float>(from.view, to.view);
      Copy::cpu(to.view, y);
    } else if constexpr (std::is_floating_point_v<T>) {
      reduce_lanes<Rule<T>, T, T>(x, y);
    } else {
      using Bits = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
      reduce_lanes<Rule<int64_t>, Bits, int64_t>(x, y);
    }
  });
}

template <template <class> class Rule>
void extreme(const View& x, const View& y, std::string_view op) {
  if (!check_some(x, y, op)) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (is_reduced_float_v<T>) {
      const Wide from(x);
      const Wide to(y);
      Copy::cpu(x, from.view);
      reduce_lanes<Rule<float>, float, float>(from.view, to.view);
      Copy::cpu(to.view, y);
    } else {
      using Bits = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
      reduce_lanes<Rule<Bits>, Bits, Bits>(x, y);
    }
  });
}

}  // namespace

void Sum::cpu(const View& x, const View& y) { accumulate<SumRule>(x, y); }
void Prod::cpu(const View& x, const View& y) { accumulate<ProdRule>(x, y); }
void Max::cpu(const View& x, const View& y) { extreme<MaxRule>(x, y, "max"); }
void Min::cpu(const View& x, const View& y) { extreme<MinRule>(x, y, "min"); }

}  // namespace lockstep::kernels
