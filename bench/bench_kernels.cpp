// How fast the CPU's kernels are, against what the machine can do: element-wise ops and reductions
// beside a copy of memory, products and convolutions beside oneDNN in layouts of its own choice.
//
//   OMP_NUM_THREADS=1 build/release/bench/bench_kernels --benchmark_filter=conv
//
// The columns are Google Benchmark's; bytes count what a kernel must read and write at least.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/conv.h"
#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/pool.h"
#include "lockstep/kernels/reduce.h"
#include "lockstep/kernels/softmax.h"

namespace lockstep::kernels {
namespace {

// Memory with a view of it, filled with numbers between 0.5 and 1.5.
struct Array {
  Array(DType dtype, const Shape& shape, const Strides& strides)
      : memory(allocate(static_cast<size_t>(numel(shape)) * size_of(dtype))),
        view{memory.get(), dtype, kCpu, shape, strides} {
    const Shape flat = {numel(shape)};
    const auto numbers = allocate(static_cast<size_t>(flat[0]) * sizeof(float));
    auto* x = static_cast<float*>(numbers.get());
    for (int64_t i = 0; i < flat[0]; ++i) x[i] = 0.5f + static_cast<float>(i % 1000) * 1e-3f;
    Copy::cpu({x, DType::kF32, kCpu, flat, {1}}, {view.data, dtype, kCpu, flat, {1}});
  }
  Array(DType dtype, const Shape& shape) : Array(dtype, shape, contiguous_strides(shape)) {}

  int64_t bytes() const { return view.numel() * static_cast<int64_t>(size_of(view.dtype)); }

  std::shared_ptr<void> memory;
  View view;
};

Array channels_last(const Shape& shape) {
  return {DType::kF32, shape, channels_last_strides(shape)};
}

void count_bytes(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

void count_flops(benchmark::State& state, double flops) {
  state.counters["flop/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

// Elements of the large cases, which do not fit the caches, and of the small ones, which do.
constexpr int64_t kLarge = 1 << 24;
constexpr int64_t kSmall = 1 << 14;

void copy_memory(benchmark::State& state) {
  const Array x(DType::kF32, {state.range(0)});
  const Array y(DType::kF32, {state.range(0)});
  for (auto _ : state) {
    std::memcpy(y.view.data, x.view.data, static_cast<size_t>(x.bytes()));
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2 * x.bytes());
}
BENCHMARK(copy_memory)->Arg(kLarge)->Arg(kSmall);

template <class Op, DType kDType = DType::kF32>
void unary(benchmark::State& state) {
  const Array x(kDType, {state.range(0)});
  const Array y(kDType, {state.range(0)});
  for (auto _ : state) Unary<Op>::cpu(x.view, y.view);
  count_bytes(state, 2 * x.bytes());
}
BENCHMARK(unary<Relu>)->Arg(kLarge)->Arg(kSmall);
BENCHMARK(unary<Exp>)->Arg(kLarge)->Arg(kSmall);
BENCHMARK(unary<Log>)->Arg(kSmall);
BENCHMARK(unary<Tanh>)->Arg(kSmall);
BENCHMARK(unary<Sigmoid>)->Arg(kSmall);
BENCHMARK(unary<Gelu>)->Arg(kSmall);
BENCHMARK(unary<Relu, DType::kBF16>)->Arg(kSmall);
BENCHMARK(unary<Relu, DType::kF16>)->Arg(kSmall);

template <DType kDType>
void add(benchmark::State& state) {
  const Array a(kDType, {state.range(0)});
  const Array b(kDType, {state.range(0)});
  const Array y(kDType, {state.range(0)});
  for (auto _ : state) Binary<Add>::cpu(a.view, b.view, y.view);
  count_bytes(state, 3 * a.bytes());
}
BENCHMARK(add<DType::kF32>)->Arg(kLarge)->Arg(kSmall);
BENCHMARK(add<DType::kBF16>)->Arg(kSmall);

// A bias (C) on rows, or on channels-last images.
void add_bias(benchmark::State& state) {
  const Shape shape = {kSmall * 16 / state.range(0), state.range(0)};
  const Array x(DType::kF32, shape);
  const Array bias(DType::kF32, {state.range(0)});
  View wide = bias.view;
  wide.shape = shape;
  wide.strides = {0, 1};
  for (auto _ : state) Binary<Add>::cpu(x.view, wide, x.view);
  count_bytes(state, 2 * x.bytes());
}
BENCHMARK(add_bias)->Arg(10)->Arg(64)->Arg(1024);

void multiply_by_scalar(benchmark::State& state) {
  const Array x(DType::kF32, {state.range(0)});
  const Array one(DType::kF32, {1});
  View wide = one.view;
  wide.shape = x.view.shape;
  wide.strides = {0};
  for (auto _ : state) Binary<Mul>::cpu(x.view, wide, x.view);
  count_bytes(state, 2 * x.bytes());
}
BENCHMARK(multiply_by_scalar)->Arg(kLarge)->Arg(kSmall);

void to_channels_last(benchmark::State& state) {
  const Shape shape = {128, state.range(0), 14, 14};
  const Array x(DType::kF32, shape);
  const Array y = channels_last(shape);
  for (auto _ : state) Copy::cpu(x.view, y.view);
  count_bytes(state, 2 * x.bytes());
}
BENCHMARK(to_channels_last)->Arg(3)->Arg(64);

void convert_to_bf16(benchmark::State& state) {
  const Array x(DType::kF32, {state.range(0)});
  const Array y(DType::kBF16, {state.range(0)});
  for (auto _ : state) Copy::cpu(x.view, y.view);
  count_bytes(state, x.bytes() + y.bytes());
}
BENCHMARK(convert_to_bf16)->Arg(kLarge)->Arg(kSmall);

void sum(benchmark::State& state, const Shape& shape, const Shape& kept) {
  const Array x(DType::kF32, shape);
  const Array y(DType::kF32, kept);
  for (auto _ : state) Sum::cpu(x.view, y.view);
  count_bytes(state, x.bytes());
}
BENCHMARK_CAPTURE(sum, all, {kLarge}, {1});
BENCHMARK_CAPTURE(sum, all_small, {kSmall}, {1});
BENCHMARK_CAPTURE(sum, rows_of_10, {kLarge / 80, 10}, {kLarge / 80, 1});
BENCHMARK_CAPTURE(sum, columns_of_10, {kLarge / 80, 10}, {1, 10});
BENCHMARK_CAPTURE(sum, columns_of_64, {kLarge / 64, 64}, {1, 64});

void cross_entropy(benchmark::State& state) {
  const int64_t rows = 16384;
  const Array x(DType::kF32, {rows, 10});
  const Array target(DType::kI64, {rows});
  const Array losses(DType::kF32, {rows});
  const Array lse(DType::kF32, {rows});
  for (auto _ : state) CrossEntropy::cpu(x.view, target.view, -100, losses.view, lse.view);
  count_bytes(state, x.bytes());
}
BENCHMARK(cross_entropy);

const Shape kImages = {128, 32, 28, 28};
const Shape kHalf = {128, 32, 14, 14};

void max_pool(benchmark::State& state) {
  const Array x = channels_last(kImages);
  const Array y = channels_last(kHalf);
  const Array places(DType::kI32, kHalf, channels_last_strides(kHalf));
  for (auto _ : state) MaxPool2d::cpu(x.view, y.view, places.view, {});
  count_bytes(state, x.bytes() + 2 * y.bytes());
}
BENCHMARK(max_pool);

void max_pool_backward(benchmark::State& state) {
  const Array x = channels_last(kImages);
  const Array y = channels_last(kHalf);
  const Array places(DType::kI32, kHalf, channels_last_strides(kHalf));
  MaxPool2d::cpu(x.view, y.view, places.view, {});
  for (auto _ : state) MaxPool2dBackward::cpu(y.view, places.view, x.view);
  count_bytes(state, x.bytes() + 2 * y.bytes());
}
BENCHMARK(max_pool_backward);

void batch_norm(benchmark::State& state) {
  const Array x = channels_last(kImages);
  const Array y = channels_last(kImages);
  const Array mean(DType::kF32, {32});
  const Array m2(DType::kF32, {32});
  for (auto _ : state) {
    BatchNormStats::cpu(x.view, mean.view, m2.view);
    BatchNormApply::cpu(x.view, mean.view, m2.view, &mean.view, &mean.view, y.view);
  }
  count_bytes(state, 3 * x.bytes());
}
BENCHMARK(batch_norm);

void matmul(benchmark::State& state, int64_t m, int64_t k, int64_t n, DType dtype) {
  const Array a(dtype, {m, k});
  const Array b(dtype, {k, n});
  const Array y(dtype, {m, n});
  for (auto _ : state) MatMul::cpu(a.view, b.view, y.view, nullptr);
  count_flops(state, 2.0 * static_cast<double>(m * k * n));
}
BENCHMARK_CAPTURE(matmul, 16, 16, 16, 16, DType::kF32);
BENCHMARK_CAPTURE(matmul, 128, 128, 128, 128, DType::kF32);
BENCHMARK_CAPTURE(matmul, 128_784_1024, 128, 784, 1024, DType::kF32);
BENCHMARK_CAPTURE(matmul, 1024, 1024, 1024, 1024, DType::kF32);
BENCHMARK_CAPTURE(matmul, 1024_bf16, 1024, 1024, 1024, DType::kBF16);
BENCHMARK_CAPTURE(matmul, 256_f64, 256, 256, 256, DType::kF64);

// A padded 3 x 3 convolution that keeps the size of the image.
struct Convolution {
  int64_t batch, in, out, size;
  Shape x() const { return {batch, in, size, size}; }
  Shape y() const { return {batch, out, size, size}; }
  Shape weight() const { return {out, in, 3, 3}; }
  double flops() const { return 2.0 * 9.0 * static_cast<double>(batch * in * out * size * size); }
};
constexpr Convolution kFirst = {128, 1, 32, 28};
constexpr Convolution kSecond = {128, 32, 64, 14};
const Conv2dParams kParams = {{1, 1}, {1, 1}, {1, 1}, 1};

void conv(benchmark::State& state, const Convolution& c) {
  const Array x = channels_last(c.x());
  const Array y = channels_last(c.y());
  const Array weight(DType::kF32, c.weight());
  const Array bias(DType::kF32, {c.out});
  for (auto _ : state) Conv2d::cpu(x.view, weight.view, &bias.view, y.view, kParams);
  count_flops(state, c.flops());
}
void conv_input_grad(benchmark::State& state, const Convolution& c) {
  const Array x = channels_last(c.x());
  const Array y = channels_last(c.y());
  const Array weight(DType::kF32, c.weight());
  for (auto _ : state) Conv2dInputGrad::cpu(y.view, weight.view, x.view, kParams);
  count_flops(state, c.flops());
}
void conv_weight_grad(benchmark::State& state, const Convolution& c) {
  const Array x = channels_last(c.x());
  const Array y = channels_last(c.y());
  const Array weight(DType::kF32, c.weight());
  for (auto _ : state) Conv2dWeightGrad::cpu(y.view, x.view, weight.view, kParams);
  count_flops(state, c.flops());
}

// The same with every layout left to oneDNN, and nothing reordered on the way.
enum class Direction { kForward, kInputGrad, kWeightGrad };

template <Direction kDirection>
void conv_any_layout(benchmark::State& state, const Convolution& c) {
  omp_set_num_threads(num_threads());
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto any = [](const Shape& shape) {
    return dnnl::memory::desc(dnnl::memory::dims(shape.begin(), shape.end()),
                              dnnl::memory::data_type::f32, dnnl::memory::format_tag::any);
  };
  const auto x = any(c.x()), weight = any(c.weight()), y = any(c.y());
  const dnnl::memory::dims one = {1, 1};
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  using Forward = dnnl::convolution_forward;
  const Forward::primitive_desc forward(
      Forward::desc(dnnl::prop_kind::forward_training, kDirect, x, weight, y, one, one, one),
      engine);
  const auto memory = [&](const dnnl::memory::desc& desc) {
    dnnl::memory out(desc, engine);
    auto* data = static_cast<float*>(out.get_data_handle());
    std::fill_n(data, desc.get_size() / sizeof(float), 0.5f);
    return out;
  };
  const auto run = [&](const dnnl::primitive& primitive, const auto& arguments) {
    for (auto _ : state) {
      primitive.execute(stream, arguments);
      stream.wait();
    }
  };
  using Arguments = std::unordered_map<int, dnnl::memory>;
  if constexpr (kDirection == Direction::kForward) {
    run(Forward(forward), Arguments{{DNNL_ARG_SRC, memory(forward.src_desc())},
                                    {DNNL_ARG_WEIGHTS, memory(forward.weights_desc())},
                                    {DNNL_ARG_DST, memory(forward.dst_desc())}});
  } else if constexpr (kDirection == Direction::kInputGrad) {
    using Backward = dnnl::convolution_backward_data;
    const Backward::primitive_desc desc(Backward::desc(kDirect, x, weight, y, one, one, one),
                                        engine, forward);
    run(Backward(desc), Arguments{{DNNL_ARG_DIFF_DST, memory(desc.diff_dst_desc())},
                                  {DNNL_ARG_WEIGHTS, memory(desc.weights_desc())},
                                  {DNNL_ARG_DIFF_SRC, memory(desc.diff_src_desc())}});
  } else {
    using Backward = dnnl::convolution_backward_weights;
    const Backward::primitive_desc desc(Backward::desc(kDirect, x, weight, y, one, one, one),
                                        engine, forward);
    run(Backward(desc), Arguments{{DNNL_ARG_SRC, memory(desc.src_desc())},
                                  {DNNL_ARG_DIFF_DST, memory(desc.diff_dst_desc())},
                                  {DNNL_ARG_DIFF_WEIGHTS, memory(desc.diff_weights_desc())}});
  }
  count_flops(state, c.flops());
}

constexpr auto any_layout_forward = conv_any_layout<Direction::kForward>;
constexpr auto any_layout_input_grad = conv_any_layout<Direction::kInputGrad>;
constexpr auto any_layout_weight_grad = conv_any_layout<Direction::kWeightGrad>;

BENCHMARK_CAPTURE(conv, first, kFirst);
BENCHMARK_CAPTURE(any_layout_forward, first, kFirst);
BENCHMARK_CAPTURE(conv_weight_grad, first, kFirst);
BENCHMARK_CAPTURE(any_layout_weight_grad, first, kFirst);
BENCHMARK_CAPTURE(conv, second, kSecond);
BENCHMARK_CAPTURE(any_layout_forward, second, kSecond);
BENCHMARK_CAPTURE(conv_input_grad, second, kSecond);
BENCHMARK_CAPTURE(any_layout_input_grad, second, kSecond);
BENCHMARK_CAPTURE(conv_weight_grad, second, kSecond);
BENCHMARK_CAPTURE(any_layout_weight_grad, second, kSecond);

}  // namespace
}  // namespace lockstep::kernels

BENCHMARK_MAIN();
