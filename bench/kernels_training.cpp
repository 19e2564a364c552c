// What a training step runs beside the ops of kernels_memory.cpp: backwards, norms, pooling, random
// numbers, optimisers, and what collectives fold and quantise; on tensors of 64 MiB.

#include <benchmark/benchmark.h>

#include <span>
#include <string>
#include <vector>

#include "kernels_work.h"
#include "lockstep/core/autograd.h"
#include "lockstep/kernels/attention.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/block_quant.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/fold.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/layer_norm.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/kernels/philox.h"
#include "lockstep/kernels/pool.h"
#include "lockstep/kernels/softmax.h"

namespace lockstep::bench {
namespace {

Tensor new_f32(const Shape& shape) { return Tensor::empty(shape, {DType::kF32, device()}); }

void add_backwards() {
  add_work("backward/gelu", kOnDevice, [] {
    const Tensor g = numbers({kSide, kSide}), x = numbers({kSide, kSide}), y = gelu(x);
    const Tensor gx = new_f32(x.shape());
    return Work{3 * kSize, [=] {
                  launch<kernels::UnaryVjp<kernels::Gelu>>(device(), g.view(), x.view(), y.view(),
                                                           gx.view());
                }};
  });
  add_work("backward/softmax", kOnDevice, [] {
    const Tensor g = numbers({kSide, kSide}), y = softmax(numbers({kSide, kSide}), 1);
    const Tensor gx = new_f32(y.shape());
    return Work{3 * kSize, [=] {
                  launch<kernels::SoftmaxBackward>(device(), g.view(), y.view(), gx.view(),
                                                   int64_t{1});
                }};
  });
  add_work("backward/log_softmax", kOnDevice, [] {
    const Tensor g = numbers({kSide, kSide}), y = log_softmax(numbers({kSide, kSide}), 1);
    const Tensor gx = new_f32(y.shape());
    return Work{3 * kSize, [=] {
                  launch<kernels::LogSoftmaxBackward>(device(), g.view(), y.view(), gx.view(),
                                                      int64_t{1});
                }};
  });
  add_work("backward/cross_entropy", kOnDevice, [] {
    const Tensor x = numbers({kSide, kSide}), lse = logsumexp(x, {1}), g = numbers({kSide});
    const Tensor targets = places(kSide, {kSide}), gx = new_f32(x.shape());
    return Work{2 * kSize, [=] {
                  launch<kernels::CrossEntropyBackward>(device(), x.view(), targets.view(),
                                                        int64_t{-100}, lse.view(), g.view(),
                                                        gx.view());
                }};
  });
  add_work("backward/layer_norm", kOnDevice, [] {
    const Tensor g = numbers({kSide, kSide}), x = numbers({kSide, kSide});
    const Tensor weight = numbers({kSide}), y = new_f32(x.shape()), gx = new_f32(x.shape());
    const Tensor mean = new_f32({kSide}), rstd = new_f32({kSide});
    const Tensor gweight = new_f32({kSide}), gbias = new_f32({kSide});
    const View w = weight.view();
    launch<kernels::LayerNorm>(device(), x.view(), &w, nullptr, 1e-5, y.view(), mean.view(),
                               rstd.view());
    return Work{3 * kSize, [=] {
                  const View to_weight = weight.view(), to_gx = gx.view();
                  const View to_gweight = gweight.view(), to_gbias = gbias.view();
                  launch<kernels::LayerNormBackward>(device(), g.view(), x.view(), mean.view(),
                                                     rstd.view(), &to_weight, &to_gx, &to_gweight,
                                                     &to_gbias);
                }};
  });
}

void add_norms() {
  add_work("norm/group_norm", kOnDevice, [] {
    const Tensor x = numbers({64, 64, 64, 64}), weight = numbers({64}), bias = numbers({64});
    return Work{2 * kSize, [=] { benchmark::DoNotOptimize(group_norm(x, 16, weight, bias)); }};
  });
  constexpr int64_t kChannels = 64;
  const Shape images = {64, kChannels, 64, 64};
  const auto line = [] { return numbers({kChannels}); };
  add_work("norm/batch_norm_stats", {&read_limit, 0}, [=] {
    const Tensor x = numbers(images), mean = line(), m2 = line();
    return Work{kSize, [=] {
                  launch<kernels::BatchNormStats>(device(), x.view(), mean.view(), m2.view());
                }};
  });
  add_work("norm/batch_norm_apply", kOnDevice, [=] {
    const Tensor x = numbers(images), mean = line(), invstd = line(), weight = line();
    const Tensor bias = line(), y = new_f32(images);
    return Work{2 * kSize, [=] {
                  const View w = weight.view(), b = bias.view();
                  launch<kernels::BatchNormApply>(device(), x.view(), mean.view(), invstd.view(),
                                                  &w, &b, y.view());
                }};
  });
  add_work("backward/batch_norm_reduce", {&read_limit, 0}, [=] {
    const Tensor g = numbers(images), x = numbers(images), mean = line(), invstd = line();
    const Tensor sum_g = line(), sum_g_xhat = line();
    return Work{2 * kSize, [=] {
                  launch<kernels::BatchNormBackwardReduce>(device(), g.view(), x.view(),
                                                           mean.view(), invstd.view(), sum_g.view(),
                                                           sum_g_xhat.view());
                }};
  });
  add_work("backward/batch_norm_apply", kOnDevice, [=] {
    const Tensor g = numbers(images), x = numbers(images), mean = line(), invstd = line();
    const Tensor weight = line(), sum_g = line(), sum_g_xhat = line(), gx = new_f32(images);
    return Work{3 * kSize, [=] {
                  const View w = weight.view();
                  launch<kernels::BatchNormBackwardApply>(
                      device(), g.view(), x.view(), mean.view(), invstd.view(), &w, sum_g.view(),
                      sum_g_xhat.view(), kCount / kChannels, gx.view());
                }};
  });
}

void add_pools() {
  const Shape large = {64, 64, 64, 64}, small = {64, 64, 32, 32};
  const kernels::Pool2dParams halves = {{2, 2}, {2, 2}};
  const auto new_places = [=] { return Tensor::empty(small, {DType::kI32, device()}); };
  add_work("pool/max", kOnDevice, [=] {
    const Tensor x = numbers(large), y = new_f32(small), at = new_places();
    return Work{kSize + y.nbytes() + at.nbytes(), [=] {
                  launch<kernels::MaxPool2d>(device(), x.view(), y.view(), at.view(), halves);
                }};
  });
  add_work("backward/max_pool", kOnDevice, [=] {
    const Tensor x = numbers(large), g = numbers(small), at = new_places(), gx = new_f32(large);
    launch<kernels::MaxPool2d>(device(), x.view(), new_f32(small).view(), at.view(), halves);
    return Work{kSize + g.nbytes() + at.nbytes(), [=] {
                  launch<kernels::MaxPool2dBackward>(device(), g.view(), at.view(), gx.view(),
                                                     halves);
                }};
  });
  add_work("pool/avg", kOnDevice, [=] {
    const Tensor x = numbers(large), y = new_f32(small);
    return Work{kSize + y.nbytes(),
                [=] { launch<kernels::AvgPool2d>(device(), x.view(), y.view(), halves); }};
  });
  add_work("backward/avg_pool", kOnDevice, [=] {
    const Tensor g = numbers(small), gx = new_f32(large);
    return Work{kSize + g.nbytes(),
                [=] { launch<kernels::AvgPool2dBackward>(device(), g.view(), gx.view(), halves); }};
  });
}

void add_choices() {
  add_work("elementwise/greater", kOnDevice, [] {
    const Tensor a = numbers({kSide, kSide}), b = numbers({kSide, kSide});
    return Work{2 * kSize + kCount, [=] { benchmark::DoNotOptimize(gt(a, b)); }};
  });
  add_work("elementwise/where", kOnDevice, [] {
    const Tensor a = numbers({kSide, kSide}), b = numbers({kSide, kSide}), condition = gt(a, b);
    return Work{3 * kSize + kCount, [=] { benchmark::DoNotOptimize(where(condition, a, b)); }};
  });
  add_work("index/nonzero", kOnDevice, [] {
    const Tensor mask = gt(numbers({kCount}), 1);
    return Work{kCount + nonzero(mask).nbytes(), [=] { benchmark::DoNotOptimize(nonzero(mask)); }};
  });
}

template <class Kernel, class... Args>
void add_random(const std::string& name, Args... args) {
  add_work("random/" + name, kOnDevice, [=] {
    const Tensor x = new_f32({kCount});
    return Work{kSize,
                [=] { launch<Kernel>(device(), x.view(), args..., uint64_t{7}, uint64_t{0}); }};
  });
}

void add_steps() {
  const auto tensors = [](size_t count) {
    std::vector<Tensor> list;
    for (size_t i = 0; i < count; ++i) list.push_back(numbers({kCount / 4}));
    return list;
  };
  constexpr int64_t kBytes = kSize / 4;
  add_work("optim/lamb", kOnDevice, [=] {
    const auto t = tensors(4);
    return Work{
        7 * kBytes, [=] {
          const kernels::AdamEntry entry = {t[0].view(), t[1].view(), t[2].view(), t[3].view(), 9};
          launch<kernels::LambStep>(device(), std::span(&entry, 1),
                                    kernels::LambOptions{.lr = 1e-6});
        }};
  });
  add_work("optim/rmsprop", kOnDevice, [=] {
    const auto t = tensors(3);
    return Work{
        5 * kBytes, [=] {
          const kernels::RMSpropEntry entry = {t[0].view(), t[1].view(), t[2].view(), {}, {}};
          launch<kernels::RMSpropStep>(device(), std::span(&entry, 1),
                                       kernels::RMSpropOptions{.lr = 1e-6});
        }};
  });
  add_work("optim/adagrad", kOnDevice, [=] {
    const auto t = tensors(3);
    return Work{5 * kBytes, [=] {
                  const kernels::AdagradEntry entry = {t[0].view(), t[1].view(), t[2].view(), 9};
                  launch<kernels::AdagradStep>(device(), std::span(&entry, 1),
                                               kernels::AdagradOptions{.lr = 1e-6});
                }};
  });
  add_work("optim/l2_norm_squared", {&read_limit, 0}, [] {
    const Tensor x = numbers({kCount});
    return Work{
        kSize, [=] {
          const View view = x.view();
          benchmark::DoNotOptimize(launch<kernels::L2NormSquared>(device(), std::span(&view, 1)));
        }};
  });
}

void add_collectives() {
  constexpr int64_t kBlock = 256;
  constexpr int64_t kBlocks = kCount / kBlock;
  const auto codes = [](int64_t ranks) {
    return Tensor::zeros({ranks, kCount}, {DType::kI8, device()});
  };
  add_work("quant/block_quantize", kOnDevice, [=] {
    const Tensor x = numbers({kCount}), scales = new_f32({kBlocks}), to = codes(1).flatten();
    return Work{9 * kCount + scales.nbytes(), [=] {
                  launch<kernels::BlockQuantize>(device(), x.view(), kBlock, scales.view(),
                                                 to.view());
                }};
  });
  add_work("quant/block_dequantize_mean_of_4", kOnDevice, [=] {
    const Tensor scales = numbers({4, kBlocks}), from = codes(4), mean = new_f32({kCount});
    return Work{8 * kCount + scales.nbytes(), [=] {
                  launch<kernels::BlockDequantizeMean>(device(), scales.view(), from.view(), kBlock,
                                                       mean.view());
                }};
  });
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto some = [dtype] { return numbers({kCount}).to(dtype); };
    const int64_t bytes = kCount * static_cast<int64_t>(size_of(dtype));
    const kernels::FoldSpec spec = {dtype, kernels::FoldOp::kSum, 4};
    add_work("fold/of_4_" + std::string(name(dtype)), kOnDevice, [=] {
      const std::vector<Tensor> from = {some(), some(), some(), some()};
      const Tensor to = some();
      return Work{5 * bytes, [=] {
                    const void* sources[] = {from[0].view().data, from[1].view().data,
                                             from[2].view().data, from[3].view().data};
                    void* const outputs[] = {to.view().data};
                    launch<kernels::Fold>(device(), spec, sources, outputs, 1, kCount);
                  }};
    });
    add_work("fold/step_" + std::string(name(dtype)), kOnDevice, [=] {
      const auto partial_bytes =
          kCount * static_cast<int64_t>(kernels::partial_size(dtype, spec.op));
      const Tensor partial = new_f32({kCount}), source = some();
      return Work{2 * partial_bytes + bytes, [=] {
                    launch<kernels::FoldStep>(device(), spec, partial.view().data,
                                              source.view().data, partial.view().data, kCount);
                  }};
    });
  }
}

// Computed, not moved: 4 L S d for a head of the forward, of which the backward is two and a half,
// since it makes the scores anew.
void add_attention() {
  for (const bool backward : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::string name = std::string("attention/") + (backward ? "backward_" : "") +
                               std::string(lockstep::name(dtype));
      benchmark::RegisterBenchmark(
          name.c_str(),
          [=](benchmark::State& state) {
            constexpr int64_t kBatch = 4, kHeads = 12, kLength = 1024, kFeatures = 64;
            const auto some = [dtype] {
              return numbers({kBatch, kHeads, kLength, kFeatures}).to(dtype).set_requires_grad();
            };
            const Tensor q = some(), k = some(), v = some(), g = some().detach();
            const double flops =
                4.0 * kBatch * kHeads * kLength * kLength * kFeatures * (backward ? 2.5 : 1);
            if (backward) {
              const Tensor y = scaled_dot_product_attention(q, k, v);
              measure(state, [&] {
                benchmark::DoNotOptimize(grad({y}, {q, k, v}, {g}, {.retain_graph = true}));
              });
            } else {
              const NoGrad no_grad;
              measure(state,
                      [&] { benchmark::DoNotOptimize(scaled_dot_product_attention(q, k, v)); });
            }
            report_flops(state, flops, 0, 0);
          })
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
}

const bool registered = [] {
  add_backwards();
  add_norms();
  add_pools();
  add_choices();
  add_random<kernels::Uniform>("uniform");
  add_random<kernels::Normal>("normal");
  add_random<kernels::Bernoulli>("bernoulli", 0.1);
  add_steps();
  add_collectives();
  add_attention();
  return true;
}();

}  // namespace
}  // namespace lockstep::bench
