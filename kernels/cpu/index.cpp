#include "lockstep/kernels/index.h"

#include <algorithm>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cpu/added.h"
#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/text.h"

namespace lockstep::kernels {
namespace {

constexpr int64_t kGrain = 32768;  // elements that are worth a thread

// A contiguous view as (outer, along the axis, inner).
struct Cut {
  Cut(const View& x, int64_t axis) : outer(1), size(x.shape[static_cast<size_t>(axis)]), inner(1) {
    for (int64_t d = 0; d < x.dim(); ++d) {
      if (d != axis) (d < axis ? outer : inner) *= x.shape[static_cast<size_t>(d)];
    }
  }
  int64_t outer;
  int64_t size;
  int64_t inner;
};

int64_t place(const View& index, int64_t k) { return index.as<int64_t>()[k * index.strides[0]]; }

void check_index(std::string_view op, const View& index, int64_t size) {
  for (int64_t k = 0; k < index.shape[0]; ++k) {
    const int64_t i = place(index, k);
    check(i >= 0 && i < size, op, [&] {
      return str_cat("want places in [0, ", size, "), got ", i, " at ", k, " of the index");
    });
  }
}

// x[..., i, ...] with the axis left out.
View slice(const View& x, int64_t axis, int64_t i) {
  View out = x;
  const int64_t offset = i * x.strides[static_cast<size_t>(axis)];
  out.data = x.as<char>() + offset * static_cast<int64_t>(size_of(x.dtype));
  out.shape.erase(out.shape.begin() + axis);
  out.strides.erase(out.strides.begin() + axis);
  return out;
}

template <class T>
void add_loop(const void* const* in, void* out, int64_t n) {
  const T* a = static_cast<const T*>(in[0]);
  const T* b = static_cast<const T*>(in[1]);
  T* y = static_cast<T*>(out);
  vector_loop<kLight>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { y[i] = added(a[i], b[i]); });
}

BlockLoop add_loop_for(DType dtype) {
  return visit_dtype(
      dtype, [](auto tag) -> BlockLoop { return &add_loop<Lane<typename decltype(tag)::type>>; });
}

// y (outer, K, inner) from x (outer, size, inner), both contiguous.
template <class T>
void select_contiguous(const View& x, const View& index, const View& y, int64_t axis) {
  const Cut from(x, axis);
  const Cut to(y, axis);
  const T* source = x.as<T>();
  T* target = y.as<T>();
  if (to.inner == 1) {  // a row at a time, for which the places stay in the cache
    const int64_t rows = std::max<int64_t>(1, kGrain / to.size);
    return parallel_for(to.outer, rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = source + r * from.size;
        T* out = target + r * to.size;
        for (int64_t k = 0; k < to.size; ++k) out[k] = row[place(index, k)];
      }
    });
  }
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, to.inner));
  parallel_for(to.outer * to.size, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* row = source + (r / to.size * from.size + place(index, r % to.size)) * from.inner;
      std::copy_n(row, to.inner, target + r * to.inner);
    }
  });
}

// Threads share out the columns of the slices, so that each place is added to in order.
template <class T>
void add_contiguous(const View& x, const View& index, const View& y, int64_t axis) {
  const Cut from(x, axis);
  const Cut to(y, axis);
  const T* source = x.as<T>();
  T* target = y.as<T>();
  if (from.outer > 1 && from.inner < 64) {  // rows that no two threads write to
    const int64_t grain = std::max<int64_t>(1, kGrain / (from.size * from.inner));
    return parallel_for(from.outer, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = source + r * from.size * from.inner;
        T* out = target + r * to.size * to.inner;
        for (int64_t k = 0; k < from.size; ++k) {
          T* at = out + place(index, k) * to.inner;
          for (int64_t i = 0; i < from.inner; ++i) {
            at[i] = static_cast<T>(
                added(static_cast<Lane<T>>(at[i]), static_cast<Lane<T>>(row[k * from.inner + i])));
          }
        }
      }
    });
  }
  const int64_t rows = from.outer * from.size;
  parallel_for(from.inner, std::max<int64_t>(64, kGrain / rows), [&](int64_t begin, int64_t end) {
    simd_dispatch([=, &index]() LOCKSTEP_INLINE_LAMBDA {
      for (int64_t r = 0; r < rows; ++r) {
        const T* row = source + r * from.inner;
        T* out = target + (r / from.size * to.size + place(index, r % from.size)) * to.inner;
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          out[i] =
              static_cast<T>(added(static_cast<Lane<T>>(out[i]), static_cast<Lane<T>>(row[i])));
        }
      }
    });
  });
}

}  // namespace

void IndexSelect::cpu(const View& x, const View& index, const View& y, int64_t axis) {
  check_index("index_select", index, x.shape[static_cast<size_t>(axis)]);
  if (y.numel() == 0) return;
  if (x.is_contiguous() && y.is_contiguous()) {
    return visit_dtype(x.dtype, [&](auto tag) {
      select_contiguous<typename decltype(tag)::type>(x, index, y, axis);
    });
  }
  for (int64_t k = 0; k < index.shape[0]; ++k) {
    Copy::cpu(slice(x, axis, place(index, k)), slice(y, axis, k));
  }
}

void IndexAdd::cpu(const View& x, const View& index, const View& y, int64_t axis) {
  check_index("index_add", index, y.shape[static_cast<size_t>(axis)]);
  if (x.numel() == 0) return;
  if (x.is_contiguous() && y.is_contiguous()) {
    return visit_dtype(x.dtype, [&](auto tag) {
      add_contiguous<typename decltype(tag)::type>(x, index, y, axis);
    });
  }
  const BlockLoop loop = add_loop_for(y.dtype);
  for (int64_t k = 0; k < index.shape[0]; ++k) {
    const View to = slice(y, axis, place(index, k));
    const View from = slice(x, axis, k);
    run_blocks({&to, &from}, to, loop);
  }
}

}  // namespace lockstep::kernels
