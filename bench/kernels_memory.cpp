// Ops whose time is that of memory, on tensors of 64 MiB: the share of a copy's or a read's
// bandwidth that each reaches.

#include <benchmark/benchmark.h>

#include <span>
#include <string>
#include <vector>

#include "kernels_work.h"
#include "lockstep/core/autograd.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/optim.h"

namespace lockstep::bench {
namespace {

using kernels::AdamEntry;
using kernels::SgdEntry;

template <class F>
void add_unary(const std::string& name, Goal goal, int64_t bytes, const F& f,
               const Shape& shape = {kSide, kSide}) {
  add_work(name, goal, [=] {
    const Tensor x = numbers(shape);
    return Work{bytes, [=] { benchmark::DoNotOptimize(f(x)); }};
  });
}

void add_elementwise() {
  add_unary("elementwise/relu", kCopy, 2 * kSize, [](const Tensor& x) { return relu(x); });
  add_unary("elementwise/mul_number", kCopy, 2 * kSize, [](const Tensor& x) { return x * 1.5; });
  add_unary("elementwise/exp", kCopy, 2 * kSize, [](const Tensor& x) { return exp(x); });
  add_unary("elementwise/gelu", kCopy, 2 * kSize, [](const Tensor& x) { return gelu(x); });
  add_unary("elementwise/to_bf16", kCopy, kSize + kSize / 2,
            [](const Tensor& x) { return x.to(DType::kBF16); });
  add_work("elementwise/add", kCopy, [] {
    const Tensor a = numbers({kSide, kSide}), b = numbers({kSide, kSide});
    return Work{3 * kSize, [=] { benchmark::DoNotOptimize(a + b); }};
  });
  add_work("elementwise/add_in_place", kCopy, [] {
    Tensor a = numbers({kSide, kSide});
    const Tensor b = numbers({kSide, kSide});
    return Work{3 * kSize, [=]() mutable { a.add_(b); }};
  });
  add_work("elementwise/add_bias", kCopy, [] {
    const Tensor x = numbers({kSide, kSide}), bias = numbers({kSide});
    return Work{2 * kSize, [=] { benchmark::DoNotOptimize(x + bias); }};
  });
}

void add_reductions() {
  add_unary("reduce/sum", kRead, kSize, [](const Tensor& x) { return sum(x); });
  add_unary("reduce/sum_rows", kRead, kSize, [](const Tensor& x) { return sum(x, {1}); });
  add_unary("reduce/sum_columns", kRead, kSize, [](const Tensor& x) { return sum(x, {0}); });
  add_unary("reduce/max", kRead, kSize, [](const Tensor& x) { return max(x); });
  add_unary("reduce/max_columns", kRead, kSize, [](const Tensor& x) { return max(x, {0}); });
  add_unary("reduce/argmax_rows", kRead, kSize, [](const Tensor& x) { return argmax(x, 1); });
  add_unary("reduce/argmax_columns", kRead, kSize, [](const Tensor& x) { return argmax(x, 0); });
  add_unary("reduce/var", kRead, kSize, [](const Tensor& x) { return var(x); });
  add_unary("reduce/var_columns", kRead, kSize, [](const Tensor& x) { return var(x, {0}); });
  add_unary("reduce/std_rows", kRead, kSize, [](const Tensor& x) { return std(x, {1}); });
  add_unary("reduce/norm", kRead, kSize, [](const Tensor& x) { return norm(x); });
  add_unary("reduce/logsumexp_rows", kReadWithMath, kSize,
            [](const Tensor& x) { return logsumexp(x, {1}); });
  add_unary("reduce/cumsum_rows", kCopy, 2 * kSize, [](const Tensor& x) { return cumsum(x, 1); });
  add_unary("reduce/cumsum_columns", kCopy, 2 * kSize,
            [](const Tensor& x) { return cumsum(x, 0); });
}

void add_normalisations() {
  add_unary("norm/softmax", kCopyWithMath, 2 * kSize,
            [](const Tensor& x) { return softmax(x, 1); });
  add_unary("norm/softmax_columns", kCopyWithMath, 2 * kSize,
            [](const Tensor& x) { return softmax(x, 0); });
  add_unary("norm/log_softmax", kCopyWithMath, 2 * kSize,
            [](const Tensor& x) { return log_softmax(x, 1); });
  add_unary("norm/layer_norm", kCopyWithMath, 2 * kSize,
            [](const Tensor& x) { return layer_norm(x, {kSide}); });
  add_work("norm/cross_entropy", kReadWithMath, [] {
    const Tensor x = numbers({kSide, kSide});
    const Tensor target = places(kSide, {kSide});
    return Work{kSize, [=] { benchmark::DoNotOptimize(cross_entropy(x, target)); }};
  });
  add_work("norm/cross_entropy_of_10", kReadWithMath, [] {
    const int64_t rows = kCount / 16;
    const Tensor x = numbers({rows, 10});
    const Tensor target = places(10, {rows});
    return Work{rows * (40 + 8), [=] { benchmark::DoNotOptimize(cross_entropy(x, target)); }};
  });
}

void add_copies() {
  add_unary("copy/clone", kCopy, 2 * kSize, [](const Tensor& x) { return clone(x); });
  add_unary("copy/transpose", kCopy, 2 * kSize, [](const Tensor& x) { return x.t().contiguous(); });
  add_unary("copy/heads", kCopy, 2 * kSize,
            [](const Tensor& x) {
              return x.permute({0, 2, 1, 3}).contiguous();
            },
            {32, 512, 16, 64});
  add_unary("copy/channels_last", kCopy, 2 * kSize,
            [](const Tensor& x) { return x.channels_last(); }, {64, 64, 64, 64});
  add_work("copy/cat", kCopy, [] {
    const Tensor a = numbers({kSide / 2, kSide}), b = numbers({kSide / 2, kSide});
    return Work{2 * kSize, [=] {
                  const Tensor parts[] = {a, b};
                  benchmark::DoNotOptimize(cat(parts, 0));
                }};
  });
  add_work("copy/cat_columns", kCopy, [] {
    const Tensor a = numbers({kSide, kSide / 2}), b = numbers({kSide, kSide / 2});
    return Work{2 * kSize, [=] {
                  const Tensor parts[] = {a, b};
                  benchmark::DoNotOptimize(cat(parts, 1));
                }};
  });
  add_unary("copy/flip_rows", kCopy, 2 * kSize, [](const Tensor& x) { return flip(x, {0}); });
  add_unary("copy/flip_columns", kCopy, 2 * kSize, [](const Tensor& x) { return flip(x, {1}); });
  add_unary("copy/roll", kCopy, 2 * kSize, [](const Tensor& x) { return roll(x, 5, 1); });
  add_unary("copy/pad", kCopy, 2 * kSize, [](const Tensor& x) { return pad(x, {1, 1, 1, 1}); });
  add_unary("copy/tril", kCopy, 2 * kSize, [](const Tensor& x) { return tril(x); });
  add_unary("copy/upsample_nearest", kCopy, kSize + kSize / 4,
            [](const Tensor& x) {
              return upsample2d(x, {128, 128});
            },
            {16, 64, 64, 64});
  add_unary("copy/upsample_bilinear", kCopy, kSize + kSize / 4,
            [](const Tensor& x) {
              return upsample2d(x, {128, 128}, UpsampleMode::kBilinear);
            },
            {16, 64, 64, 64});
}

void add_indexing() {
  for (const int64_t dim : {0, 1}) {
    const std::string along = dim == 0 ? "_rows" : "_columns";
    add_work("index/index_select" + along, kCopy, [=] {
      const Tensor x = numbers({kSide, kSide}), index = places(kSide, {kSide});
      return Work{2 * kSize, [=] { benchmark::DoNotOptimize(index_select(x, dim, index)); }};
    });
    add_work("index/index_add" + along, kCopy, [=] {
      const Tensor x = numbers({kSide, kSide}), index = places(kSide, {kSide});
      return Work{3 * kSize, [=] {
                    benchmark::DoNotOptimize(index_add({kSide, kSide}, dim, index, x));
                  }};
    });
    add_work("index/gather" + along, kNone, [=] {
      const Tensor x = numbers({kSide, kSide}), index = places(kSide, {kSide, kSide});
      return Work{4 * kSize, [=] { benchmark::DoNotOptimize(gather(x, dim, index)); }};
    });
    add_work("index/scatter_add" + along, kNone, [=] {
      const Tensor x = numbers({kSide, kSide}), index = places(kSide, {kSide, kSide});
      return Work{6 * kSize, [=] { benchmark::DoNotOptimize(scatter_add(x, dim, index, x)); }};
    });
  }
  add_work("index/embedding_backward", kCopy, [] {
    const Tensor weight = numbers({8192, 512}).set_requires_grad();
    const Tensor index = places(8192, {kCount / 512});
    const Tensor y = embedding(weight, index);
    const Tensor g = numbers(y.shape());
    return Work{2 * kSize + 2 * weight.nbytes(), [=] {
                  benchmark::DoNotOptimize(grad({y}, {weight}, {g}, {.retain_graph = true}));
                }};
  });
  add_unary("index/sort_rows", kNone, 4 * kSize, [](const Tensor& x) { return sort(x, 1).values; });
  add_unary("index/topk_rows", kNone, kSize, [](const Tensor& x) { return topk(x, 8, 1).values; });
}

void add_steps() {
  const auto tensors = [](size_t count) {
    std::vector<Tensor> list;
    for (size_t i = 0; i < count; ++i) list.push_back(numbers({kCount / 4}));
    return list;
  };
  constexpr int64_t kBytes = kSize / 4;
  add_work("optim/sgd_momentum", kStep, [=] {
    const auto t = tensors(3);
    return Work{5 * kBytes, [=] {
                  const SgdEntry entry = {t[0].view(), t[1].view(), t[2].view(), true};
                  launch<kernels::SgdStep>(device(), std::span(&entry, 1),
                                           kernels::SgdOptions{.lr = 1e-6, .momentum = 0.5});
                }};
  });
  add_work("optim/adamw", kStep, [=] {
    const auto t = tensors(4);
    return Work{7 * kBytes, [=] {
                  const AdamEntry entry = {t[0].view(), t[1].view(), t[2].view(), t[3].view(), 9};
                  launch<kernels::AdamStep>(
                      device(), std::span(&entry, 1),
                      kernels::AdamOptions{.weight_decay = 1e-2, .decoupled = true});
                }};
  });
}

const bool registered = [] {
  add_elementwise();
  add_reductions();
  add_normalisations();
  add_copies();
  add_indexing();
  add_steps();
  return true;
}();

}  // namespace
}  // namespace lockstep::bench
