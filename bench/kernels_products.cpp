// Products and convolutions against what oneDNN reaches alone, with every layout left to it and
// nothing reordered on the way; on a CUDA device against cuBLASLt and cuDNN (kernels_nvidia.h).

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>

#include "kernels_limits.h"
#include "kernels_nvidia.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/kernels/conv.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::bench {
namespace {

double goal() { return device().is_cpu() ? 0.9 : 0.95; }

using Arguments = std::unordered_map<int, dnnl::memory>;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::memory::desc any_layout(const Shape& shape) {
  return {dnnl::memory::dims(shape.begin(), shape.end()), dnnl::memory::data_type::f32,
          dnnl::memory::format_tag::any};
}

dnnl::memory filled(const dnnl::memory::desc& desc) {
  dnnl::memory out(desc, engine());
  std::fill_n(static_cast<float*>(out.get_data_handle()), desc.get_size() / sizeof(float), 0.5f);
  return out;
}

// The best of several runs, in flop/s.
double rate(const dnnl::primitive& primitive, const Arguments& arguments, double flops) {
  omp_set_num_threads(num_threads());
  dnnl::stream stream(engine());
  double best = 1e9;
  const int runs = static_cast<int>(std::clamp(1e10 / flops, 5.0, 2000.0));
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    primitive.execute(stream, arguments);
    stream.wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return flops / best;
}

template <class F>
void add(const std::string& name, const F& f) {
  benchmark::RegisterBenchmark(name.c_str(), f)->UseRealTime()->Unit(benchmark::kMicrosecond);
}

Tensor normal(const Shape& shape, DType dtype = DType::kF32) {
  return randn(shape).to(dtype).to(device());
}

// ---- Products ----

double any_layout_rate(int64_t m, int64_t k, int64_t n) {
  const dnnl::matmul::primitive_desc desc(
      dnnl::matmul::desc(any_layout({m, k}), any_layout({k, n}), any_layout({m, n})), engine());
  return rate(dnnl::matmul(desc),
              {{DNNL_ARG_SRC, filled(desc.src_desc())},
               {DNNL_ARG_WEIGHTS, filled(desc.weights_desc())},
               {DNNL_ARG_DST, filled(desc.dst_desc())}},
              2.0 * static_cast<double>(m * k * n));
}

void add_product(const std::string& name, int64_t m, int64_t k, int64_t n,
                 DType dtype = DType::kF32) {
  add("matmul/" + name, [=](benchmark::State& state) {
    const double flops = 2.0 * static_cast<double>(m * k * n);
    const Tensor a = normal({m, k}, dtype), b = normal({k, n}, dtype), y = normal({m, n}, dtype);
    const double limit =
        device().is_cpu() ? any_layout_rate(m, k, n) : cublas_rate(a.view(), b.view(), y.view());
    measure(state,
            [&] { launch<kernels::MatMul>(device(), a.view(), b.view(), y.view(), nullptr); });
    report_flops(state, flops, limit, goal());
  });
}

// ---- Convolutions ----

// A padded square convolution.
struct Convolution {
  int64_t batch, in, out, size, kernel, stride;

  int64_t pad() const { return kernel / 2; }
  int64_t out_size() const { return (size + 2 * pad() - kernel) / stride + 1; }
  Shape x() const { return {batch, in, size, size}; }
  Shape y() const { return {batch, out, out_size(), out_size()}; }
  Shape weight() const { return {out, in, kernel, kernel}; }
  double flops() const {
    return 2.0 * static_cast<double>(kernel * kernel * batch * in * out * out_size() * out_size());
  }
  kernels::Conv2dParams params() const { return {{stride, stride}, {pad(), pad()}, {1, 1}, 1}; }
};

enum class Direction { kForward, kInputGrad, kWeightGrad };

double any_layout_rate(Direction direction, const Convolution& c) {
  const auto x = any_layout(c.x()), weight = any_layout(c.weight()), y = any_layout(c.y());
  const dnnl::memory::dims stride = {c.stride, c.stride}, pad = {c.pad(), c.pad()};
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  using Forward = dnnl::convolution_forward;
  const Forward::primitive_desc forward(
      Forward::desc(dnnl::prop_kind::forward_training, kDirect, x, weight, y, stride, pad, pad),
      engine());
  if (direction == Direction::kForward) {
    return rate(Forward(forward),
                {{DNNL_ARG_SRC, filled(forward.src_desc())},
                 {DNNL_ARG_WEIGHTS, filled(forward.weights_desc())},
                 {DNNL_ARG_DST, filled(forward.dst_desc())}},
                c.flops());
  }
  if (direction == Direction::kInputGrad) {
    using Backward = dnnl::convolution_backward_data;
    const Backward::primitive_desc desc(Backward::desc(kDirect, x, weight, y, stride, pad, pad),
                                        engine(), forward);
    return rate(Backward(desc),
                {{DNNL_ARG_DIFF_DST, filled(desc.diff_dst_desc())},
                 {DNNL_ARG_WEIGHTS, filled(desc.weights_desc())},
                 {DNNL_ARG_DIFF_SRC, filled(desc.diff_src_desc())}},
                c.flops());
  }
  using Backward = dnnl::convolution_backward_weights;
  const Backward::primitive_desc desc(Backward::desc(kDirect, x, weight, y, stride, pad, pad),
                                      engine(), forward);
  return rate(Backward(desc),
              {{DNNL_ARG_SRC, filled(desc.src_desc())},
               {DNNL_ARG_DIFF_DST, filled(desc.diff_dst_desc())},
               {DNNL_ARG_DIFF_WEIGHTS, filled(desc.diff_weights_desc())}},
              c.flops());
}

// What a library reaches alone: oneDNN, or cuDNN, with channels last or first as it likes them.
double limit_of(Direction direction, const Convolution& c, const Tensor& x, const Tensor& weight,
                const Tensor& y) {
  if (device().is_cpu()) return any_layout_rate(direction, c);
  const auto what = direction == Direction::kForward     ? cuda::Computes::kY
                    : direction == Direction::kInputGrad ? cuda::Computes::kX
                                                         : cuda::Computes::kWeight;
  const auto rate_of = [&](const auto& lay) {
    const Tensor lx = lay(x), lw = lay(weight), ly = lay(y);
    return cudnn_rate(what, lx.view(), lw.view(), ly.view(), c.params(), c.flops());
  };
  return std::max(rate_of([](const Tensor& t) { return t.channels_last(); }),
                  rate_of([](const Tensor& t) { return t.contiguous(); }));
}

void add_convolution(const std::string& name, const Convolution& c, DType dtype = DType::kF32) {
  const auto numbers = [=](const Shape& shape) { return normal(shape, dtype).channels_last(); };
  add("conv/" + name + "/forward", [=](benchmark::State& state) {
    const Tensor x = numbers(c.x()), y = numbers(c.y());
    const Tensor weight = normal(c.weight(), dtype), bias = normal({c.out}, dtype);
    const double limit = limit_of(Direction::kForward, c, x, weight, y);
    const View bias_view = bias.view();
    measure(state, [&] {
      launch<kernels::Conv2d>(device(), x.view(), weight.view(), &bias_view, y.view(), c.params());
    });
    report_flops(state, c.flops(), limit, goal());
  });
  if (c.in > 3) {  // the first layer's input needs no gradient
    add("conv/" + name + "/input_grad", [=](benchmark::State& state) {
      const Tensor x = numbers(c.x()), weight = normal(c.weight(), dtype), y = numbers(c.y());
      const double limit = limit_of(Direction::kInputGrad, c, x, weight, y);
      measure(state, [&] {
        launch<kernels::Conv2dInputGrad>(device(), y.view(), weight.view(), x.view(), c.params());
      });
      report_flops(state, c.flops(), limit, goal());
    });
  }
  add("conv/" + name + "/weight_grad", [=](benchmark::State& state) {
    const Tensor x = numbers(c.x()), weight = normal(c.weight(), dtype), y = numbers(c.y());
    const double limit = limit_of(Direction::kWeightGrad, c, x, weight, y);
    measure(state, [&] {
      launch<kernels::Conv2dWeightGrad>(device(), y.view(), x.view(), weight.view(), c.params());
    });
    report_flops(state, c.flops(), limit, goal());
  });
}

const bool registered = [] {
  add_product("128", 128, 128, 128);
  add_product("mlp_128_784_1024", 128, 784, 1024);
  add_product("gpt_1024_256_1024", 1024, 256, 1024);
  add_product("1024", 1024, 1024, 1024);
  add_convolution("first", {128, 1, 32, 28, 3, 1});
  add_convolution("second", {128, 32, 64, 14, 3, 1});
  add_convolution("resnet_64", {8, 64, 64, 56, 3, 1});
  add_convolution("resnet_128_step", {8, 64, 128, 56, 3, 2});
  add_convolution("pointwise", {8, 256, 128, 28, 1, 1});
  return true;
}();

}  // namespace

void add_device_products() {
  // A step of GPT-2 124M with 8 samples: the MLP's two products, and the logits.
  constexpr int64_t kTokens = 8 * 1024, kWidth = 768;
  add_product("4096", 4096, 4096, 4096);
  add_product("bf16_4096", 4096, 4096, 4096, DType::kBF16);
  add_product("bf16_gpt2_up", kTokens, kWidth, 4 * kWidth, DType::kBF16);
  add_product("bf16_gpt2_down", kTokens, 4 * kWidth, kWidth, DType::kBF16);
  add_product("bf16_gpt2_logits", kTokens, kWidth, 50257, DType::kBF16);
  add_convolution("bf16_resnet_64", {64, 64, 64, 56, 3, 1}, DType::kBF16);
  add_convolution("bf16_resnet_128_step", {64, 64, 128, 56, 3, 2}, DType::kBF16);
  add_convolution("bf16_pointwise", {64, 256, 128, 28, 1, 1}, DType::kBF16);
}

}  // namespace lockstep::bench
