#include "lockstep/kernels/gather.h"

#include <atomic>

#include "lockstep/kernels/cpu/added.h"
#include "lockstep/kernels/cpu/lines.h"
#include "lockstep/kernels/text.h"

namespace lockstep::kernels {
namespace {

void check_index(std::string_view op, const View& index, int64_t axis, int64_t size) {
  const Lines lines(index.shape, axis);
  const int64_t step = index.strides[static_cast<size_t>(axis)];
  const int64_t beside = lines.beside(index.strides);
  std::atomic<bool> bad{false};
  lines.for_each_strip([&](int64_t line, int64_t count) {
    const int64_t* place = index.as<int64_t>() + lines.offset(index.strides, line);
    bool outside = false;
    for (int64_t k = 0; k < lines.length(); ++k) {
      for (int64_t j = 0; j < count; ++j) {
        const auto i = static_cast<uint64_t>(place[k * step + j * beside]);
        outside = outside || i >= static_cast<uint64_t>(size);
      }
    }
    if (outside) bad = true;
  });
  if (!bad) return;
  for (int64_t line = 0; line < lines.count(); ++line) {  // which one it is
    const int64_t* place = index.as<int64_t>() + lines.offset(index.strides, line);
    for (int64_t k = 0; k < lines.length(); ++k) {
      const int64_t i = place[k * step];
      check(i >= 0 && i < size, op, [&] {
        return str_cat("want places in [0, ", size, "), got ", i, " at ", k, " of dimension ", axis,
                       " of the index");
      });
    }
  }
}

// y[..., index, ...] = join(y[..., index, ...], x), in order along the axis.
template <class Join>
void scatter_lines(std::string_view op, const View& x, const View& index, const View& y,
                   int64_t axis, const Join& join) {
  const auto d = static_cast<size_t>(axis);
  check_index(op, index, axis, y.shape[d]);
  if (x.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Lines lines(index.shape, axis);
    const int64_t x_step = x.strides[d], y_step = y.strides[d], place_step = index.strides[d];
    const int64_t x_beside = lines.beside(x.strides), y_beside = lines.beside(y.strides);
    const int64_t place_beside = lines.beside(index.strides);
    lines.for_each_strip([&](int64_t line, int64_t count) {
      const T* from = x.as<T>() + lines.offset(x.strides, line);
      const int64_t* place = index.as<int64_t>() + lines.offset(index.strides, line);
      T* to = y.as<T>() + lines.offset(y.strides, line);
      for (int64_t k = 0; k < lines.length(); ++k) {
        for (int64_t j = 0; j < count; ++j) {
          T& target = to[place[k * place_step + j * place_beside] * y_step + j * y_beside];
          target = join(target, from[k * x_step + j * x_beside]);
        }
      }
    });
  });
}

}  // namespace

void Gather::cpu(const View& x, const View& index, const View& y, int64_t axis) {
  const auto d = static_cast<size_t>(axis);
  check_index("gather", index, axis, x.shape[d]);
  if (y.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Lines lines(index.shape, axis);
    const int64_t x_step = x.strides[d], y_step = y.strides[d], place_step = index.strides[d];
    const int64_t x_beside = lines.beside(x.strides), y_beside = lines.beside(y.strides);
    const int64_t place_beside = lines.beside(index.strides);
    lines.for_each_strip([&](int64_t line, int64_t count) {
      const T* from = x.as<T>() + lines.offset(x.strides, line);
      const int64_t* place = index.as<int64_t>() + lines.offset(index.strides, line);
      T* to = y.as<T>() + lines.offset(y.strides, line);
      for (int64_t k = 0; k < lines.length(); ++k) {
        for (int64_t j = 0; j < count; ++j) {
          to[k * y_step + j * y_beside] =
              from[place[k * place_step + j * place_beside] * x_step + j * x_beside];
        }
      }
    });
  });
}

void ScatterAdd::cpu(const View& x, const View& index, const View& y, int64_t axis) {
  scatter_lines("scatter_add", x, index, y, axis, []<class T>(T a, T b) {
    return static_cast<T>(added(static_cast<Lane<T>>(a), static_cast<Lane<T>>(b)));
  });
}

void Scatter::cpu(const View& x, const View& index, const View& y, int64_t axis) {
  scatter_lines("scatter", x, index, y, axis, []<class T>(T, T b) { return b; });
}

}  // namespace lockstep::kernels
