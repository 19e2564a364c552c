#pragma once

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/memory.h"

// Places that come from outside are looked at before a kernel goes by them. The host waits for
// what was found: an error must name it. In a captured graph nobody waits, and the device stops.
namespace lockstep::cuda {

// *first becomes the smallest i for which wrong(i) holds; it stays what it was if there is none.
template <class Wrong>
__global__ void __launch_bounds__(kThreads)
    find_first_kernel(Wrong wrong, int64_t count, unsigned long long* first) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if (wrong(i)) atomicMin(first, static_cast<unsigned long long>(i));
  }
}

template <class Wrong>
__global__ void __launch_bounds__(kThreads) stop_if_kernel(Wrong wrong, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if (wrong(i)) __trap();
  }
}

// The first i of [0, count) for which wrong(i) holds on the device, or -1; in a capture -1.
template <class Wrong>
int64_t find_first(int64_t count, const Wrong& wrong, Device device) {
  if (count == 0) return -1;
  if (is_capturing()) {
    launch_kernel(grid_for(count), dim3(kThreads), stop_if_kernel<Wrong>, wrong, count);
    return -1;
  }
  const auto found = allocate(sizeof(int64_t), device);
  // All ones are the largest number to the device, and -1 here.
  LOCKSTEP_CUDA_CHECK(cudaMemsetAsync(found.get(), 0xff, sizeof(int64_t), stream()));
  launch_kernel(grid_for(count), dim3(kThreads), find_first_kernel<Wrong>, wrong, count,
                static_cast<unsigned long long*>(found.get()));
  int64_t first = 0;
  copy(&first, kCpu, found.get(), device, sizeof first);
  return first;
}

// The element at `offset` of a view, brought to the host.
template <class T>
T element_at(const View& x, int64_t offset) {
  T out;
  copy(&out, kCpu, x.as<T>() + offset, x.device, sizeof out);
  return out;
}

// The dimensions that lines along `axis` are counted in.
inline Shape dims_but(const Shape& shape, int64_t axis) {
  Shape order = row_major_order(shape);
  order.erase(std::remove(order.begin(), order.end(), axis), order.end());
  return order;
}

// The first elements of the lines along `axis`, seen once for each element of a line of `shape`.
inline View line_starts(View x, const Shape& shape, int64_t axis) {
  x.shape = shape;
  x.strides[static_cast<size_t>(axis)] = 0;
  return x;
}

// Not elements but how far along its line each one of `shape` is.
inline View places_along(const View& x, const Shape& shape, int64_t axis) {
  View out = x;
  out.shape = shape;
  out.strides = Strides(shape.size(), 0);
  out.strides[static_cast<size_t>(axis)] = 1;
  return out;
}

template <class T>
struct Outside {
  const T* places;
  Indexer<1> indexer;
  int64_t size;
  __device__ bool operator()(int64_t i) const {
    const T place = places[indexer.locate(i).at[0]];
    return place < 0 || place >= size;
  }
};

// Throws Error(kInvalidArgument) with message(i, place) unless all elements of `places` are in
// [0, size); i counts in row-major order.
template <class T, class Message>
void check_places(const View& places, int64_t size, std::string_view op, const Message& message) {
  const View* const views[1] = {&places};
  const Indexer<1> indexer = make_indexer(views, row_major_order(places.shape), op);
  const int64_t first =
      find_first(places.numel(), Outside<T>{places.as<T>(), indexer, size}, places.device);
  if (first < 0) return;
  const int64_t place = element_at<T>(places, indexer.locate(first).at[0]);
  lockstep::check(false, op, [&] { return message(first, place); });
}

}  // namespace lockstep::cuda
