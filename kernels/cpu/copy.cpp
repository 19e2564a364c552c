#include "lockstep/kernels/copy.h"

#include <algorithm>
#include <cstring>

#include "lockstep/kernels/convert.h"
#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/strided.h"

namespace lockstep::kernels {
namespace {

template <class From, class To>
void convert_loop(const void* const* in, void* out, int64_t n) {
  const From* x = static_cast<const From*>(in[0]);
  To* y = static_cast<To*>(out);
  vector_loop(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { y[i] = convert<To>(x[i]); });
}

constexpr int64_t kTile = 32;
constexpr int64_t kFewColumns = 16;
constexpr int64_t kGrainBytes = 1 << 17;

// y[i, j] = x[j, i] for (rows, columns) of y, whose rows are contiguous as x's columns are: tile by
// tile, so that every cache line is used whole while it is there.
template <class T>
void transpose(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows,
               int64_t columns) {
  if (columns < kFewColumns) {  // no room for a vector
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) y[i * y_stride + j] = x[j * x_stride + i];
    }
    return;
  }
  simd_dispatch([=]() LOCKSTEP_INLINE_LAMBDA {
    for (int64_t i0 = 0; i0 < rows; i0 += kTile) {
      const int64_t i1 = std::min(rows, i0 + kTile);
      for (int64_t j0 = 0; j0 < columns; j0 += kTile) {
        const int64_t j1 = std::min(columns, j0 + kTile);
        for (int64_t i = i0; i < i1; ++i) {
#pragma omp simd
          for (int64_t j = j0; j < j1; ++j) y[i * y_stride + j] = x[j * x_stride + i];
        }
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

template <class T>
void copy_run(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t n) {
  if (x_stride == 1 && y_stride == 1) {
    std::memcpy(y, x, static_cast<size_t>(n) * sizeof(T));
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
  Shape outer;
  View x_outer{nullptr, from.dtype, from.device, {}, {}};
  View y_outer = x_outer;
  for (size_t d = 0; d + 1 < rank; ++d) {
    if (d == row) continue;
    outer.push_back(static_cast<int64_t>(outer.size()));
    x_outer.shape.push_back(p.shape[d]);
    x_outer.strides.push_back(p.x[d]);
    y_outer.strides.push_back(p.y[d]);
  }
  y_outer.shape = x_outer.shape;
  const auto offset = [&](const Strides& strides, int64_t index) {
    int64_t sum = 0;
    for (size_t d = x_outer.shape.size(); d-- > 0;) {
      sum += index % x_outer.shape[d] * strides[d];
      index /= x_outer.shape[d];
    }
    return sum;
  };
  const int64_t blocks = total / (rows * columns);
  // A lone transpose is cut along its rows.
  const int64_t cuts = transposes ? (rows + kTile - 1) / kTile : 1;
  parallel_for(blocks * cuts, std::max<int64_t>(1, grain / (total / (blocks * cuts))),
               [&](int64_t begin, int64_t end) {
                 for (int64_t k = begin; k < end; ++k) {
                   const T* xk = x + offset(x_outer.strides, k / cuts);
                   T* yk = y + offset(y_outer.strides, k / cuts);
                   if (!transposes) {
                     copy_run(xk, p.x[rank - 1], yk, p.y[rank - 1], columns);
                     continue;
                   }
                   const int64_t first = k % cuts * kTile;
                   transpose(xk + first, p.x[rank - 1], yk + first * p.y[row], p.y[row],
                             std::min(kTile, rows - first), columns);
                 }
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
