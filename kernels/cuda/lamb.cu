// LAMB's step goes along a direction that two moving averages and the parameter give, at a rate
// that depends on the norm of all of it. The first launch updates the averages and sums the
// squares, the second finds the rates, the third takes the step with the direction made again,
// which costs fewer bytes than to keep it: parameter and averages are read twice, the gradient
// once, all but the gradient written once. For 16-bit floats the direction is that of the averages
// as stored.
#include <cmath>

#include "lockstep/kernels/cuda/optim.cuh"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

using cuda::kThreads;
using cuda::Plus;
using cuda::Wide;

// The squares of a block's share of the parameter and of the direction.
struct Squares {
  double parameter;
  double direction;
};

template <class C>
struct LambRule {
  C beta1, beta2, rest1, rest2, mean_scale, square_scale, eps, decay;
  Squares* squares;  // one for each block
  const C* rate;

  __device__ C direction(C mean, C square, C parameter) const {
    return mean * mean_scale / (sqrt(square) * square_scale + eps) + decay * parameter;
  }
  // Of the parameter, exp_avg and exp_avg_sq.
  __device__ void step(C (&lanes)[3]) const {
    lanes[0] -= *rate * direction(lanes[1], lanes[2], lanes[0]);
  }
};

// Arrays: exp_avg, exp_avg_sq, the parameter, the gradient.
template <class T>
__global__ void __launch_bounds__(kThreads)
    average_kernel(cuda::Group<T, 4, LambRule<Wide<T>>> group) {
  using C = Wide<T>;
  const unsigned entry = blockIdx.y;
  const LambRule<C>& rule = group.rules[entry];
  T* const* arrays = group.arrays[entry];
  const int64_t count = group.counts[entry];
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  Squares sum = {0, 0};
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const C gradient = static_cast<C>(arrays[3][i]);
    const C parameter = static_cast<C>(arrays[2][i]);
    const T mean =
        static_cast<T>(rule.beta1 * static_cast<C>(arrays[0][i]) + rule.rest1 * gradient);
    const T square = static_cast<T>(rule.beta2 * static_cast<C>(arrays[1][i]) +
                                    rule.rest2 * gradient * gradient);
    arrays[0][i] = mean;
    arrays[1][i] = square;
    const double along = rule.direction(static_cast<C>(mean), static_cast<C>(square), parameter);
    sum.parameter += static_cast<double>(parameter) * static_cast<double>(parameter);
    sum.direction += along * along;
  }
  sum.parameter = cuda::block_reduce(sum.parameter, 0.0, Plus());
  sum.direction = cuda::block_reduce(sum.direction, 0.0, Plus());
  if (threadIdx.x == 0) rule.squares[blockIdx.x] = sum;
}

// A block for each entry, whose row of squares has `length` elements.
template <class C>
__global__ void __launch_bounds__(kThreads)
    rate_kernel(const Squares* squares, int64_t length, double lr, C* rates) {
  Squares sum = {0, 0};
  for (int64_t i = threadIdx.x; i < length; i += kThreads) {
    const Squares& more = squares[blockIdx.x * length + i];
    sum.parameter += more.parameter;
    sum.direction += more.direction;
  }
  sum.parameter = cuda::block_reduce(sum.parameter, 0.0, Plus());
  sum.direction = cuda::block_reduce(sum.direction, 0.0, Plus());
  if (threadIdx.x != 0) return;
  const double weight = sqrt(sum.parameter);
  const double step = sqrt(sum.direction);
  rates[blockIdx.x] = static_cast<C>(weight > 0 && step > 0 ? lr * (weight / step) : lr);
}

template <class T>
void lamb(std::span<const AdamEntry> entries, const LambOptions& o) {
  using C = Wide<T>;
  const auto is_ours = [](const AdamEntry& e) {
    return e.parameter.dtype == dtype_of<T>() && e.parameter.numel() > 0;
  };
  const auto count = static_cast<size_t>(std::count_if(entries.begin(), entries.end(), is_ours));
  if (count == 0) return;
  const Device device = entries[0].parameter.device;
  const auto length = static_cast<size_t>(cuda::full_grid());
  const auto memory = allocate(count * length * sizeof(Squares), device);
  const auto rate_memory = allocate(count * sizeof(C), device);
  auto* squares = static_cast<Squares*>(memory.get());
  auto* rates = static_cast<C*>(rate_memory.get());
  cuda::set_zero(squares, count * length * sizeof(Squares), current_stream(device));
  size_t met = 0;  // both walks meet the entries in one order
  const auto rule_of = [&](const AdamEntry& e) {
    const auto t = static_cast<double>(e.step);
    const size_t at = met++;
    return LambRule<C>{static_cast<C>(o.beta1),
                       static_cast<C>(o.beta2),
                       static_cast<C>(1 - o.beta1),
                       static_cast<C>(1 - o.beta2),
                       static_cast<C>(1 / (1 - std::pow(o.beta1, t))),
                       static_cast<C>(1 / std::sqrt(1 - std::pow(o.beta2, t))),
                       static_cast<C>(o.eps),
                       static_cast<C>(o.weight_decay),
                       squares + at * length,
                       rates + at};
  };
  cuda::for_each_group<T, 4, LambRule<C>>(
      entries,
      [](const AdamEntry& e) {
        return std::array<const View*, 4>{&e.exp_avg, &e.exp_avg_sq, &e.parameter, &e.gradient};
      },
      rule_of,
      [](dim3 grid, const auto& group) {
        cuda::launch_kernel(grid, dim3(kThreads), average_kernel<T>, group);
      });
  cuda::launch_kernel(dim3(static_cast<unsigned>(count)), dim3(kThreads), rate_kernel<C>, squares,
                      static_cast<int64_t>(length), o.lr, rates);
  met = 0;
  cuda::step_all<T, 3, 1, LambRule<C>>(
      entries,
      [](const AdamEntry& e) {
        return std::array<const View*, 3>{&e.parameter, &e.exp_avg, &e.exp_avg_sq};
      },
      rule_of);
}

}  // namespace

void LambStep::cuda(std::span<const AdamEntry> entries, const LambOptions& options) {
  check_entries(entries, options);
  cuda::for_each_floating([&](auto tag) { lamb<typename decltype(tag)::type>(entries, options); });
}

}  // namespace lockstep::kernels
