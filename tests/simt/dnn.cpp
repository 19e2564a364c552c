// Stands in for cuDNN behind kernels/cuda/dnn.h: a kernel of one thread, so that the emulator
// checks its accesses and orders it as those of any other.
#include "lockstep/kernels/cuda/dnn.h"

#include <vector>

#include "lockstep/kernels/cuda/launch.cuh"

namespace lockstep::cuda {
namespace {

struct Image {
  void* data;
  int64_t sizes[4];
  int64_t strides[4];
};

Image image(const View& x) {
  Image out = {x.data, {}, {}};
  std::copy(x.shape.begin(), x.shape.end(), out.sizes);
  std::copy(x.strides.begin(), x.strides.end(), out.strides);
  return out;
}

bool is_by_rows(const View& x) {
  const Strides rows = contiguous_strides(x.shape);
  for (size_t d = 0; d < rows.size(); ++d) {
    if (x.shape[d] != 1 && x.strides[d] != rows[d]) return false;
  }
  return true;
}

int64_t place(const Image& x, const int64_t (&at)[4]) {
  int64_t out = 0;
  for (int d = 0; d < 4; ++d) out += at[d] * x.strides[d];
  return out;
}

// Calls f(place in x, place in weight, place in y) for each product of the convolution.
template <class F>
void for_each_product(const Image& x, const Image& weight, const Image& y,
                      const kernels::Conv2dParams& p, const F& f) {
  const int64_t outs = weight.sizes[0] / p.groups, ins = weight.sizes[1];
  const int64_t rows = weight.sizes[2], columns = weight.sizes[3];
  const int64_t products = y.sizes[0] * y.sizes[1] * y.sizes[2] * y.sizes[3] * ins * rows * columns;
  for (int64_t index = 0; index < products; ++index) {
    int64_t rest = index;
    const auto next = [&rest](int64_t size) {
      const int64_t i = rest % size;
      rest /= size;
      return i;
    };
    const int64_t s = next(columns), r = next(rows), c = next(ins);
    const int64_t j = next(y.sizes[3]), i = next(y.sizes[2]), o = next(y.sizes[1]), n = rest;
    const int64_t h = i * p.stride[0] - p.padding[0] + r * p.dilation[0];
    const int64_t w = j * p.stride[1] - p.padding[1] + s * p.dilation[1];
    if (h < 0 || h >= x.sizes[2] || w < 0 || w >= x.sizes[3]) continue;
    f(place(x, {n, o / outs * ins + c, h, w}), place(weight, {o, c, r, s}), place(y, {n, o, i, j}));
  }
}

template <class T>
__global__ void convolution_kernel(Computes what, Image x, Image weight, Image y,
                                   kernels::Conv2dParams params, bool adds) {
  using W = Wide<T>;
  const Image& result = what == Computes::kY ? y : what == Computes::kX ? x : weight;
  const auto value = [](const Image& of, int64_t at) {
    return static_cast<W>(static_cast<const T*>(of.data)[at]);
  };
  // The result's memory has no gaps.
  std::vector<W> sums(
      static_cast<size_t>(result.sizes[0] * result.sizes[1] * result.sizes[2] * result.sizes[3]));
  for_each_product(x, weight, y, params, [&](int64_t in_x, int64_t in_weight, int64_t in_y) {
    switch (what) {
      case Computes::kY:
        sums[static_cast<size_t>(in_y)] += value(x, in_x) * value(weight, in_weight);
        break;
      case Computes::kX:
        sums[static_cast<size_t>(in_x)] += value(y, in_y) * value(weight, in_weight);
        break;
      case Computes::kWeight:
        sums[static_cast<size_t>(in_weight)] += value(y, in_y) * value(x, in_x);
        break;
    }
  });
  for (size_t i = 0; i < sums.size(); ++i) {
    T& element = static_cast<T*>(result.data)[i];
    element = static_cast<T>(adds ? sums[i] + static_cast<W>(element) : sums[i]);
  }
}

}  // namespace

// A library need not have an engine for each order in memory: here there is none in channels-last
// memory for f64, as in cuDNN, nor for what is dilated.
bool convolve(std::string_view op, Computes what, const View& x, const View& weight, const View& y,
              const kernels::Conv2dParams& params, bool adds) {
  const bool dilated = params.dilation[0] != 1 || params.dilation[1] != 1;
  if ((x.dtype == DType::kF64 || dilated) && !(is_by_rows(x) && is_by_rows(weight))) return false;
  visit_floating(x.dtype, op, [&](auto tag) {
    launch_kernel(dim3(1), dim3(1), convolution_kernel<typename decltype(tag)::type>, what,
                  image(x), image(weight), image(y), params, adds);
  });
  return true;
}

}  // namespace lockstep::cuda
