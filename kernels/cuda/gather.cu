// Elements by their places along one dimension. What is picked is moved as it is, in runs of 16
// bytes where there are such: each element of y and index is read or written once, and one of x
// read for each of y. What is added or put is sorted by its place first, so that the thread of a
// place's first element (or last) meets all of them in order: each of x, index and their order is
// read once, each place that is met read and written once.
#include "lockstep/kernels/gather.h"

#include "lockstep/kernels/cpu/added.h"
#include "lockstep/kernels/cuda/places.cuh"
#include "lockstep/kernels/index.h"
#include "lockstep/kernels/sort.h"
#include "lockstep/kernels/strided.h"
#include "lockstep/kernels/text.h"

namespace lockstep::kernels {
namespace {

using cuda::Indexer;
using cuda::kThreads;
using cuda::line_starts;

// Calls f(TypeTag<T>{}) with a T of `bytes` bytes.
template <class F>
void visit_bits(size_t bytes, const F& f) {
  if (bytes == 1) return f(TypeTag<uint8_t>{});
  if (bytes == 2) return f(TypeTag<uint16_t>{});
  if (bytes == 4) return f(TypeTag<uint32_t>{});
  if (bytes == 8) return f(TypeTag<uint64_t>{});
  f(TypeTag<uint4>{});
}

// An index (K) along `axis`, seen with `shape`: the same for all lines.
View along(const View& index, const Shape& shape, int64_t axis) {
  View out = index;
  out.shape = shape;
  out.strides = Strides(shape.size(), 0);
  out.strides[static_cast<size_t>(axis)] = index.strides[0];
  return out;
}

// Operands: y, the lines of x, index.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const T* x, const int64_t* index, T* y, Indexer<3> indexer, int64_t x_step,
                  int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto at = indexer.locate(i);
    y[at.at[0]] = x[at.at[1] + index[at.at[2]] * x_step];
  }
}

// Whether all runs along the last dimension are made of whole packs of n elements, of 16 bytes.
bool in_packs(const View& x, int64_t n) {
  bool fits = x.strides.back() == 1 && x.shape.back() % n == 0 &&
              reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  for (size_t d = 0; d + 1 < x.shape.size(); ++d) fits = fits && x.strides[d] % n == 0;
  return fits;
}

View packed(View x, int64_t n) {
  x.shape.back() /= n;
  for (size_t d = 0; d + 1 < x.shape.size(); ++d) x.strides[d] /= n;
  return x;
}

// `index` has y's shape.
void gather(const View& x, View index, View y, int64_t axis, std::string_view op) {
  if (y.numel() == 0) return;
  View from = line_starts(x, y.shape, axis);
  int64_t x_step = x.strides[static_cast<size_t>(axis)];
  size_t bytes = size_of(x.dtype);
  const auto n = static_cast<int64_t>(16 / bytes);
  if (axis + 1 < y.dim() && index.strides.back() == 0 && x_step % n == 0 && in_packs(from, n) &&
      in_packs(y, n)) {
    from = packed(from, n);
    y = packed(y, n);
    index.shape = y.shape;
    x_step /= n;
    bytes = 16;
  }
  const View* const views[3] = {&y, &from, &index};
  const Indexer<3> indexer = cuda::make_indexer(views, memory_order(y), op);
  visit_bits(bytes, [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::launch_kernel(cuda::grid_for(y.numel()), dim3(kThreads), gather_kernel<T>,
                        static_cast<const T*>(x.data), index.as<int64_t>(), y.as<T>(), indexer,
                        x_step, y.numel());
  });
}

// Elements of lines, sorted by their places. Operands: the lines of y, of x, of the index and of
// the order, and how far along its line an element is.
struct Sorted {
  Indexer<5> indexer;
  int64_t y_step;
  int64_t x_step;
  int64_t index_step;
  int64_t order_step;
  int64_t length;
};

// Element p of a line's places in ascending order, and where the lines of y and x begin.
struct InLine {
  const int64_t* index;
  const int64_t* order;
  int64_t index_step;
  int64_t order_step;
  int64_t y;
  int64_t x;
  int64_t p;

  __device__ InLine(const Sorted& s, const int64_t* all, const int64_t* orders, int64_t i) {
    const auto at = s.indexer.locate(i);
    index = all + at.at[2];
    order = orders + at.at[3];
    index_step = s.index_step;
    order_step = s.order_step;
    y = at.at[0];
    x = at.at[1];
    p = at.at[4];
  }
  __device__ int64_t element(int64_t q) const { return order[q * order_step]; }
  __device__ int64_t place(int64_t q) const { return index[element(q) * index_step]; }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const T* x, const int64_t* index, const int64_t* order, T* y, Sorted s,
                   int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const InLine line(s, index, order, i);
    const int64_t p = line.p;
    const int64_t place = line.place(p);
    if (p + 1 < s.length && line.place(p + 1) == place) continue;  // a later one stays
    y[line.y + place * s.y_step] = x[line.x + line.element(p) * s.x_step];
  }
}

constexpr int kAhead = 4;  // loads that do not wait for each other, nor for an addition

// Without a number of blocks ptxas spills rather than give a thread more registers.
template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    add_kernel(const T* x, const int64_t* index, const int64_t* order, T* y, Sorted s,
               int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const InLine line(s, index, order, i);
    const int64_t p = line.p;
    const int64_t place = line.place(p);
    if (p > 0 && line.place(p - 1) == place) continue;  // that one's thread adds this one too
    T* target = y + line.y + place * s.y_step;
    T sum = *target;
    bool goes_on = true;
    for (int64_t q = p; goes_on; q += kAhead) {
      bool same[kAhead];
      T more[kAhead] = {};
      for (int k = 0; k < kAhead; ++k) {
        same[k] = q + k < s.length && line.place(q + k) == place;
        if (same[k]) more[k] = x[line.x + line.element(q + k) * s.x_step];
      }
      for (int k = 0; k < kAhead; ++k) {
        if (same[k]) {
          sum = static_cast<T>(added(static_cast<Lane<T>>(sum), static_cast<Lane<T>>(more[k])));
        }
      }
      goes_on = same[kAhead - 1];
    }
    *target = sum;
  }
}

// `index` and `order` have x's shape.
Sorted make_sorted(const View& x, const View& index, const View& order, const View& y, int64_t axis,
                   std::string_view op) {
  const auto d = static_cast<size_t>(axis);
  const View y_lines = line_starts(y, x.shape, axis);
  const View x_lines = line_starts(x, x.shape, axis);
  const View index_lines = line_starts(index, x.shape, axis);
  const View order_lines = line_starts(order, x.shape, axis);
  const View number = cuda::places_along(x, x.shape, axis);
  const View* const views[5] = {&y_lines, &x_lines, &index_lines, &order_lines, &number};
  return {cuda::make_indexer(views, memory_order(x), op),
          y.strides[d],
          x.strides[d],
          index.strides[d],
          order.strides[d],
          x.shape[d]};
}

struct Order {
  std::shared_ptr<void> memory;
  View view;
};

// The elements of an index in the order of their places, equal ones in their own.
Order order_of(const View& index, int64_t axis) {
  Order out;
  out.memory = allocate(static_cast<size_t>(index.numel()) * sizeof(int64_t), index.device);
  out.view = index;
  out.view.data = out.memory.get();
  out.view.strides = contiguous_strides(index.shape);
  ArgSort::cuda(index, out.view, axis, false);
  return out;
}

void add(const View& x, const View& index, const View& order, const View& y, int64_t axis,
         std::string_view op) {
  const Sorted s = make_sorted(x, index, order, y, axis, op);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::launch_kernel(cuda::grid_for(x.numel()), dim3(kThreads), add_kernel<T>,
                        static_cast<const T*>(x.data), static_cast<const int64_t*>(index.data),
                        static_cast<const int64_t*>(order.data), y.as<T>(), s, x.numel());
  });
}

// For an index of x's or y's shape.
void check_index(std::string_view op, const View& index, int64_t axis, int64_t size) {
  int64_t inner = 1;
  for (int64_t d = axis + 1; d < index.dim(); ++d) inner *= index.shape[static_cast<size_t>(d)];
  cuda::check_places<int64_t>(index, size, op, [&](int64_t i, int64_t place) {
    return str_cat("want places in [0, ", size, "), got ", place, " at ",
                   i / inner % index.shape[static_cast<size_t>(axis)], " of dimension ", axis,
                   " of the index");
  });
}

// For an index (K).
void check_index(std::string_view op, const View& index, int64_t size) {
  cuda::check_places<int64_t>(index, size, op, [&](int64_t k, int64_t place) {
    return str_cat("want places in [0, ", size, "), got ", place, " at ", k, " of the index");
  });
}

}  // namespace

void Gather::cuda(const View& x, const View& index, const View& y, int64_t axis) {
  check_index("gather", index, axis, x.shape[static_cast<size_t>(axis)]);
  gather(x, index, y, axis, "gather");
}

void IndexSelect::cuda(const View& x, const View& index, const View& y, int64_t axis) {
  check_index("index_select", index, x.shape[static_cast<size_t>(axis)]);
  gather(x, along(index, y.shape, axis), y, axis, "index_select");
}

void ScatterAdd::cuda(const View& x, const View& index, const View& y, int64_t axis) {
  check_index("scatter_add", index, axis, y.shape[static_cast<size_t>(axis)]);
  if (x.numel() == 0) return;
  add(x, index, order_of(index, axis).view, y, axis, "scatter_add");
}

void IndexAdd::cuda(const View& x, const View& index, const View& y, int64_t axis) {
  check_index("index_add", index, y.shape[static_cast<size_t>(axis)]);
  if (x.numel() == 0) return;
  const Order order = order_of(index, 0);
  add(x, along(index, x.shape, axis), along(order.view, x.shape, axis), y, axis, "index_add");
}

void Scatter::cuda(const View& x, const View& index, const View& y, int64_t axis) {
  check_index("scatter", index, axis, y.shape[static_cast<size_t>(axis)]);
  if (x.numel() == 0) return;
  const Order order = order_of(index, axis);
  const Sorted s = make_sorted(x, index, order.view, y, axis, "scatter");
  visit_bits(size_of(x.dtype), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::launch_kernel(cuda::grid_for(x.numel()), dim3(kThreads), scatter_kernel<T>,
                        static_cast<const T*>(x.data), static_cast<const int64_t*>(index.data),
                        static_cast<const int64_t*>(order.view.data), y.as<T>(), s, x.numel());
  });
}

}  // namespace lockstep::kernels
