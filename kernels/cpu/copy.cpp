#include "lockstep/kernels/copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/kernels/convert.h"
#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/cpu/past_cache.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/strided.h"

namespace lockstep::kernels {
namespace {

template <class From, class To>
void convert_loop(const void* const* in, void* out, int64_t n) {
  const From* x = static_cast<const From*>(in[0]);
  To* y = static_cast<To*>(out);
  // Between elements of two widths vectors of 512 bits have instructions that others lack.
  constexpr SimdLevel kWidest = sizeof(From) == sizeof(To) ? kLight : SimdLevel::kAvx512;
  vector_loop<kWidest>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { y[i] = convert<To>(x[i]); });
}

constexpr int64_t kFewColumns = 16;
constexpr int64_t kGrainBytes = 1 << 17;
constexpr int64_t kFetchedBytes = 2048;
constexpr int64_t kRunsAhead = 8;

// A square of elements, kSide by kSide, goes through as many vectors of 16 bytes.
template <class T>
struct Square {
  static constexpr int64_t kSide = 16 / static_cast<int64_t>(sizeof(T));
  typedef T Vector __attribute__((vector_size(16), aligned(sizeof(T))));
  using Places = std::make_integer_sequence<int, static_cast<int>(kSide)>;

  // Elements from `first` on of a and b in turns: a, b, a, b, …
  template <int first, int... i>
  static LOCKSTEP_INLINE Vector in_turns(Vector a, Vector b, std::integer_sequence<int, i...>) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, (first + i / 2 + i % 2 * static_cast<int>(kSide))...);
#else
    return __builtin_shuffle(a, b, Vector{static_cast<T>(first + i / 2 + i % 2 * kSide)...});
#endif
  }

  // y[i, j] = x[j, i].
  static LOCKSTEP_INLINE void transpose(const T* x, int64_t x_stride, T* y, int64_t y_stride) {
    constexpr int64_t kHalf = kSide / 2;
    Vector rows[kSide];
    for (int64_t k = 0; k < kSide; ++k) {
      rows[k] = *reinterpret_cast<const Vector*>(x + k * x_stride);
    }
    for (int64_t done = 1; done < kSide; done *= 2) {  // a bit of i becomes one of j in each round
      Vector next[kSide];
      for (int64_t k = 0; k < kHalf; ++k) {
        next[2 * k] = in_turns<0>(rows[k], rows[k + kHalf], Places());
        next[2 * k + 1] = in_turns<kHalf>(rows[k], rows[k + kHalf], Places());
      }
      for (int64_t k = 0; k < kSide; ++k) rows[k] = next[k];
    }
    for (int64_t k = 0; k < kSide; ++k) {
      *reinterpret_cast<Vector*>(y + k * y_stride) = rows[k];
    }
  }
};

// Elements to a side of the tiles of a transpose: of x and of y each the rows are runs of several
// cache lines, and a tile stays in the first-level cache.
template <class T>
constexpr int64_t kTile = sizeof(T) == 8 ? 32 : 64;

// y[i, j] = x[j, i] for (rows, columns) of y, whose rows are contiguous as x's columns are.
template <class T>
void transpose_plainly(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows,
                       int64_t columns, bool) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) y[i * y_stride + j] = x[j * x_stride + i];
  }
}

// The same for a strip of as many columns as a tile has at most. A tile is put together beside y
// and written as whole runs: y's own rows are often so many bytes apart that they drive each other
// out of the cache. Tiles follow the rows, so that x is read in long runs.
template <class T>
void transpose_strip(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows,
                     int64_t columns, bool past_cache) {
  constexpr int64_t kSide = Square<T>::kSide;
  simd_dispatch([=]() LOCKSTEP_INLINE_LAMBDA {
    constexpr int64_t kRow = kTile<T> + kSide;  // no power of two, for the cache's sake
    alignas(64) T tile[kTile<T> * kRow];
    const int64_t whole_width = columns / kSide * kSide;
    const int64_t bytes = columns * static_cast<int64_t>(sizeof(T));
    const bool stream = past_cache && bytes % kCacheLine == 0;
    for (int64_t i0 = 0; i0 < rows; i0 += kTile<T>) {
      const int64_t height = std::min(kTile<T>, rows - i0);
      const int64_t whole_height = height / kSide * kSide;
      const T* from = x + i0;
      for (int64_t j = 0; j < whole_width; j += kSide) {
        for (int64_t i = 0; i < whole_height; i += kSide) {
          Square<T>::transpose(from + j * x_stride + i, x_stride, tile + i * kRow + j, kRow);
        }
      }
      for (int64_t i = 0; i < height; ++i) {
        T* row = tile + i * kRow;
        for (int64_t j = i < whole_height ? whole_width : 0; j < columns; ++j) {
          row[j] = from[j * x_stride + i];
        }
        T* to = y + (i0 + i) * y_stride;
        if (stream) {
          copy_past_cache(row, to, bytes);
          continue;
        }
#pragma omp simd
        for (int64_t j = 0; j < columns; ++j) to[j] = row[j];
      }
    }
  });
}

// Both views cut alike: dimensions in the order of y's memory, merged where both allow.
struct Pair {
  Shape shape;
  Strides x;
  Strides y;
};

// Where an element stands in both, one after the other in row-major order: without the divisions
// that would take as long as a short run.
class Place {
 public:
  Place(const Pair& pair, int64_t index) : pair_(pair), at_(pair.shape.size()) {
    for (size_t d = pair.shape.size(); d-- > 0;) {
      at_[d] = index % pair.shape[d];
      index /= pair.shape[d];
      x_ += at_[d] * pair.x[d];
      y_ += at_[d] * pair.y[d];
    }
  }

  void advance() {
    for (size_t d = at_.size(); d-- > 0;) {
      x_ += pair_.x[d];
      y_ += pair_.y[d];
      if (++at_[d] < pair_.shape[d]) return;
      at_[d] = 0;
      x_ -= pair_.shape[d] * pair_.x[d];
      y_ -= pair_.shape[d] * pair_.y[d];
    }
  }

  int64_t x() const { return x_; }
  int64_t y() const { return y_; }

 private:
  const Pair& pair_;
  Shape at_;
  int64_t x_ = 0;
  int64_t y_ = 0;
};

Pair merged(const View& x, const View& y) {
  Pair out;
  for (int64_t dim : memory_order(y)) {
    const auto d = static_cast<size_t>(dim);
    const int64_t size = y.shape[d];
    if (!out.shape.empty() && out.x.back() == x.strides[d] * size &&
        out.y.back() == y.strides[d] * size) {
      out.shape.back() *= size;
      out.x.back() = x.strides[d];
      out.y.back() = y.strides[d];
    } else {
      out.shape.push_back(size);
      out.x.push_back(x.strides[d]);
      out.y.push_back(y.strides[d]);
    }
  }
  return out;
}

// memcpy with pieces too short for the string instruction of x86-64, which takes more than twice
// the time where what it writes to is not aligned.
void copy_bytes(const void* x, void* y, size_t size) {
  constexpr size_t kPiece = 1024;
  if (size <= kPiece || reinterpret_cast<uintptr_t>(y) % 64 == 0) {
    std::memcpy(y, x, size);
    return;
  }
  for (size_t at = 0; at < size; at += kPiece) {
    std::memcpy(static_cast<char*>(y) + at, static_cast<const char*>(x) + at,
                std::min(kPiece, size - at));
  }
}

template <class T>
void copy_run(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t n) {
  if (x_stride == 1 && y_stride == 1) {
    copy_bytes(x, y, static_cast<size_t>(n) * sizeof(T));
  } else if (x_stride == 0 && y_stride == 1) {
    std::fill_n(y, n, x[0]);
  } else if (x_stride == -1 && y_stride == 1) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[-i];
  } else {
    for (int64_t i = 0; i < n; ++i) y[i * y_stride] = x[i * x_stride];
  }
}

// Copies without conversion.
template <class T>
void copy_bits(const View& from, const View& to, int64_t total) {
  const Pair p = merged(from, to);
  const T* x = static_cast<const T*>(from.data);
  T* y = static_cast<T*>(to.data);
  constexpr int64_t grain = kGrainBytes / static_cast<int64_t>(sizeof(T));
  const size_t rank = p.shape.size();
  if (rank <= 1) {
    const int64_t x_stride = rank == 0 ? 1 : p.x[0];
    const int64_t y_stride = rank == 0 ? 1 : p.y[0];
    return parallel_for(total, grain, [&](int64_t begin, int64_t end) {
      copy_run(x + begin * x_stride, x_stride, y + begin * y_stride, y_stride, end - begin);
    });
  }
  // The inner block is a run, or a transpose where another dimension is the contiguous one of x.
  size_t row = rank - 1;
  if (p.y[rank - 1] == 1 && p.x[rank - 1] > 1) {
    for (size_t d = 0; d + 1 < rank; ++d) {
      if (p.x[d] == 1) row = d;
    }
  }
  const bool transposes = row != rank - 1;
  const int64_t columns = p.shape[rank - 1];
  const int64_t rows = transposes ? p.shape[row] : 1;
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  bool past_cache = p.y[rank - 1] == 1 && (transposes || p.x[rank - 1] == 1);
  Pair outer;
  for (size_t d = 0; d + 1 < rank; ++d) {
    past_cache = past_cache && goes_past_cache(y, p.y[d] * kSize, total * kSize);
    if (d == row) continue;
    outer.shape.push_back(p.shape[d]);
    outer.x.push_back(p.x[d]);
    outer.y.push_back(p.y[d]);
  }
  const int64_t blocks = total / (rows * columns);
  const int64_t run = columns * kSize;
  // A lone transpose is cut along its columns, and along its rows where there are many.
  constexpr int64_t kManyRows = 16 * kTile<T>;
  const bool squares = columns >= kFewColumns && rows >= Square<T>::kSide;
  const auto transpose = squares ? &transpose_strip<T> : &transpose_plainly<T>;
  const int64_t down = transposes ? (rows + kManyRows - 1) / kManyRows : 1;
  const int64_t cuts = transposes ? (columns + kTile<T> - 1) / kTile<T> * down : 1;
  const int64_t jobs = blocks * cuts;
  parallel_for(jobs, std::max<int64_t>(1, grain / (total / jobs)), [&](int64_t begin, int64_t end) {
    // Short runs of x that stand apart are fetched before their turn.
    const bool fetches = past_cache && !transposes && run <= kFetchedBytes;
    Place place(outer, begin / cuts);
    Place ahead(outer, std::min(begin / cuts + kRunsAhead, blocks - 1));
    for (int64_t k = begin; k < end; ++k) {
      if (k > begin && k % cuts == 0) place.advance();
      const T* xk = x + place.x();
      T* yk = y + place.y();
      if (transposes) {
        const int64_t i = k % down * kManyRows;
        const int64_t j = k % cuts / down * kTile<T>;
        transpose(xk + i + j * p.x[rank - 1], p.x[rank - 1], yk + i * p.y[row] + j, p.y[row],
                  std::min(kManyRows, rows - i), std::min(kTile<T>, columns - j), past_cache);
        continue;
      }
      if (fetches && k + kRunsAhead < blocks) {
        const char* next = reinterpret_cast<const char*>(x + ahead.x());
        for (int64_t at = 0; at < run; at += kCacheLine) __builtin_prefetch(next + at);
        ahead.advance();
      }
      if (past_cache && run % kCacheLine == 0) {
        copy_past_cache(xk, yk, run);
      } else {
        copy_run(xk, p.x[rank - 1], yk, p.y[rank - 1], columns);
      }
    }
    if (past_cache) end_past_cache();
  });
}

template <class V>
void fill(const View& x, V value) {
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T element = element_of<T>(value);
    if (x.shape.empty()) {  // the operand that a number becomes
      *static_cast<T*>(x.data) = element;
      return;
    }
    const View one{&element, x.dtype, x.device, x.shape, Strides(x.shape.size(), 0)};
    Copy::cpu(one, x);
  });
}

}  // namespace

void Copy::cpu(const View& x, const View& y) {
  const int64_t total = y.numel();
  if (total == 0) return;
  if (x.dtype == y.dtype) {
    switch (size_of(x.dtype)) {
      case 1:
        return copy_bits<uint8_t>(x, y, total);
      case 2:
        return copy_bits<uint16_t>(x, y, total);
      case 4:
        return copy_bits<uint32_t>(x, y, total);
      default:
        return copy_bits<uint64_t>(x, y, total);
    }
  }
  visit_dtype(x.dtype, [&](auto from) {
    visit_dtype(y.dtype, [&](auto to) {
      run_blocks(
          {&x}, y,
          &convert_loop<Lane<typename decltype(from)::type>, Lane<typename decltype(to)::type>>);
    });
  });
}

void Fill::cpu(const View& x, double value) { fill(x, value); }

void Fill::cpu(const View& x, int64_t value) { fill(x, value); }

}  // namespace lockstep::kernels
