// Random fills: the CPU's numbers, bit for bit (built without fused multiply-adds). A thread takes
// a counter, which makes two neighbouring elements.
#include "lockstep/kernels/philox.h"

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/philox_math.h"

namespace lockstep::kernels {
namespace {

struct UniformMaker {
  template <class T>
  __device__ void make(const uint64_t (&bits)[2], T (&out)[2]) const {
    for (int k = 0; k < 2; ++k) out[k] = uniform<T>(bits[k]);
  }
};

struct NormalMaker {
  template <class T>
  __device__ void make(const uint64_t (&bits)[2], T (&out)[2]) const {
    const NormalPair pair = normal_pair(bits[0], bits[1]);
    out[0] = static_cast<T>(static_cast<Computed<T>>(pair.first));
    out[1] = static_cast<T>(static_cast<Computed<T>>(pair.second));
  }
};

struct IntegerMaker {
  int64_t low;
  uint64_t span;
  template <class T>
  __device__ void make(const uint64_t (&bits)[2], T (&out)[2]) const {
    for (int k = 0; k < 2; ++k) {
      out[k] = static_cast<T>(static_cast<Computed<T>>(integer_in(bits[k], low, span)));
    }
  }
};

struct BernoulliMaker {
  Threshold threshold;
  template <class T>
  __device__ void make(const uint64_t (&bits)[2], T (&out)[2]) const {
    for (int k = 0; k < 2; ++k) {
      const bool hit = threshold.always || bits[k] < threshold.below;
      out[k] = static_cast<T>(static_cast<Computed<T>>(hit ? 1 : 0));
    }
  }
};

template <class T, class Maker>
__global__ void __launch_bounds__(cuda::kThreads)
    fill_kernel(T* x, cuda::Indexer<1> indexer, int64_t count, uint64_t seed, uint64_t offset,
                Maker maker) {
  const uint64_t first = offset / 2;
  const uint64_t last = (offset + static_cast<uint64_t>(count) - 1) / 2;
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t c = first + uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; c <= last; c += step) {
    const auto words = philox4x32({static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), 0, 0},
                                  {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    const uint64_t bits[2] = {words[0] | uint64_t{words[1]} << 32,
                              words[2] | uint64_t{words[3]} << 32};
    T values[2];
    maker.make(bits, values);
    for (int k = 0; k < 2; ++k) {
      const auto i = static_cast<int64_t>(2 * c + static_cast<uint64_t>(k) - offset);
      if (i >= 0 && i < count) x[indexer.locate(i).at[0]] = values[k];
    }
  }
}

template <class T, class Maker>
void fill(const View& x, uint64_t seed, uint64_t offset, const Maker& maker) {
  const int64_t count = x.numel();
  if (count == 0) return;
  Shape order;  // elements are counted in row-major order
  for (size_t d = 0; d < x.shape.size(); ++d) {
    if (x.shape[d] != 1) order.push_back(static_cast<int64_t>(d));
  }
  const View* const views[1] = {&x};
  cuda::launch_kernel(cuda::grid_for(count / 2 + 1), dim3(cuda::kThreads), fill_kernel<T, Maker>,
                      x.as<T>(), cuda::make_indexer(views, order, "random"), count, seed, offset,
                      maker);
}

}  // namespace

void Uniform::cuda(const View& x, uint64_t seed, uint64_t offset) {
  visit_floating(x.dtype, "uniform", [&](auto tag) {
    fill<typename decltype(tag)::type>(x, seed, offset, UniformMaker{});
  });
}

void Normal::cuda(const View& x, uint64_t seed, uint64_t offset) {
  visit_floating(x.dtype, "normal", [&](auto tag) {
    fill<typename decltype(tag)::type>(x, seed, offset, NormalMaker{});
  });
}

void RandInt::cuda(const View& x, int64_t low, int64_t high, uint64_t seed, uint64_t offset) {
  check_randint(x, low, high);
  const uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  visit_dtype(x.dtype, [&](auto tag) {
    fill<typename decltype(tag)::type>(x, seed, offset, IntegerMaker{low, span});
  });
}

void Bernoulli::cuda(const View& x, double p, uint64_t seed, uint64_t offset) {
  check_bernoulli(p);
  const BernoulliMaker maker = {threshold_of(p)};
  visit_dtype(x.dtype,
              [&](auto tag) { fill<typename decltype(tag)::type>(x, seed, offset, maker); });
}

}  // namespace lockstep::kernels
