#include "lockstep/kernels/sort.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/cpu/lines.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

// NaN is larger than all numbers, and equal to itself.
template <class T>
bool less(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a < b || (b != b && a == a);
  } else {
    return a < b;
  }
}

constexpr int64_t kGrain = 1 << 15;

// Calls f(elements, step, first, count) for the parts of lines along the last dimension that make
// up [begin, end) in row-major order; `first` is a part's beginning in that.
template <class T, class F>
void for_line_parts(const View& x, int64_t begin, int64_t end, const F& f) {
  const Lines lines(x.dim() == 0 ? Shape{1} : x.shape, std::max<int64_t>(x.dim() - 1, 0));
  const int64_t step = x.dim() == 0 ? 1 : x.strides.back();
  while (begin < end) {
    const int64_t line = begin / lines.length(), k = begin % lines.length();
    const int64_t count = std::min(end - begin, lines.length() - k);
    f(x.as<T>() + (x.dim() == 0 ? 0 : lines.offset(x.strides, line)) + k * step, step, begin,
      count);
    begin += count;
  }
}

template <class T>
int64_t count_nonzero(const View& x, int64_t begin, int64_t end) {
  int64_t total = 0;
  for_line_parts<T>(x, begin, end, [&](const T* from, int64_t step, int64_t, int64_t count) {
    int64_t here = 0;
    for (int64_t i = 0; i < count; ++i) here += static_cast<Lane<T>>(from[i * step]) != 0 ? 1 : 0;
    total += here;
  });
  return total;
}

// Writes the places of those in [begin, end) from the `at`-th on. Hits of a block are gathered
// first: where they fall cannot be foreseen, and a branch for each would cost more than all else.
template <class T>
void write_nonzero(const View& x, int64_t begin, int64_t end, int64_t at, const View& places) {
  constexpr int64_t kBlock = 256;
  const size_t dims = places.dim() == 2 ? x.shape.size() : 0;
  auto* out = places.as<int64_t>() + at * static_cast<int64_t>(dims == 0 ? 1 : dims);
  Shape where(dims);
  for_line_parts<T>(x, begin, end, [&](const T* from, int64_t step, int64_t first, int64_t count) {
    for (size_t d = dims; d-- > 0;) {
      where[d] = first % x.shape[d];
      first /= d == 0 ? 1 : x.shape[d];
    }
    const int64_t start = dims == 0 ? first : where[dims - 1];
    for (int64_t block = 0; block < count; block += kBlock) {
      int64_t hits[kBlock], number = 0;
      const int64_t stop = std::min(count, block + kBlock);
      for (int64_t i = block; i < stop; ++i) {
        hits[number] = start + i;
        number += static_cast<Lane<T>>(from[i * step]) != 0 ? 1 : 0;
      }
      if (dims <= 1) {
        out = std::copy_n(hits, number, out);
        continue;
      }
      for (int64_t h = 0; h < number; ++h) {
        out = std::copy_n(where.begin(), dims - 1, out);
        *out++ = hits[h];
      }
    }
  });
}

}  // namespace

void ArgSort::cpu(const View& x, const View& places, int64_t axis, bool descending) {
  const auto d = static_cast<size_t>(axis);
  const int64_t wanted = places.shape[d];
  if (places.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // std::vector<bool> is no array.
    using Key = std::conditional_t<std::is_same_v<T, bool>, uint8_t, Lane<T>>;
    const Lines lines(x.shape, axis);
    const int64_t n = lines.length();
    parallel_for(lines.count(), std::max<int64_t>(1, 2048 / n), [&](int64_t begin, int64_t end) {
      std::vector<Key> keys(static_cast<size_t>(n));
      std::vector<int64_t> order(static_cast<size_t>(n));
      const auto before = [&keys, descending](int64_t i, int64_t j) {
        const Key a = keys[static_cast<size_t>(i)];
        const Key b = keys[static_cast<size_t>(j)];
        if (descending ? less(b, a) : less(a, b)) return true;
        return !(descending ? less(a, b) : less(b, a)) && i < j;
      };
      for (int64_t line = begin; line < end; ++line) {
        const T* from = x.as<T>() + lines.offset(x.strides, line);
        for (int64_t k = 0; k < n; ++k) {
          keys[static_cast<size_t>(k)] = static_cast<Key>(from[k * x.strides[d]]);
        }
        std::iota(order.begin(), order.end(), 0);
        if (wanted == n) {
          std::sort(order.begin(), order.end(), before);
        } else {
          std::partial_sort(order.begin(), order.begin() + wanted, order.end(), before);
        }
        int64_t* to = places.as<int64_t>() + lines.offset(places.strides, line);
        for (int64_t k = 0; k < wanted; ++k)
          to[k * places.strides[d]] = order[static_cast<size_t>(k)];
      }
    });
  });
}

int64_t CountNonzero::cpu(const View& x) {
  std::atomic<int64_t> total = 0;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(x.numel(), kGrain,
                 [&](int64_t begin, int64_t end) { total += count_nonzero<T>(x, begin, end); });
  });
  return total;
}

void Nonzero::cpu(const View& x, const View& places) {
  const int64_t n = x.numel();
  const int64_t pieces = std::clamp<int64_t>(n / kGrain, 1, num_threads());
  const int64_t length = (n + pieces - 1) / pieces;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<int64_t> first(static_cast<size_t>(pieces) + 1);  // of each piece, in places
    const auto for_pieces = [&](const auto& f) {
      parallel_for(pieces, 1, [&](int64_t from, int64_t to) {
        for (int64_t p = from; p < to; ++p) {
          f(static_cast<size_t>(p), p * length, std::min(n, (p + 1) * length));
        }
      });
    };
    for_pieces([&](size_t p, int64_t begin, int64_t end) {
      first[p + 1] = count_nonzero<T>(x, begin, end);
    });
    std::partial_sum(first.begin(), first.end(), first.begin());
    for_pieces([&](size_t p, int64_t begin, int64_t end) {
      write_nonzero<T>(x, begin, end, first[p], places);
    });
  });
}

}  // namespace lockstep::kernels
