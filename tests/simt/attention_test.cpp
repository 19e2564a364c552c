// Attention of kernels/cuda/ against the CPU's.
#include <gmock/gmock.h>

#include "expect_same.h"
#include "lockstep/kernels/attention.h"

namespace lockstep::testing {
namespace {

using kernels::AttentionOptions;

struct Case {
  Shape lead;
  int64_t queries, keys, features, columns;
};

// Tiles are 64 by 64, or 32 by 32 in f64: sizes below, at and above.
const Case kCases[] = {{{}, 5, 7, 3, 9},     {{2, 3}, 64, 64, 16, 16}, {{1, 2}, 70, 131, 33, 66},
                       {{3}, 1, 65, 64, 1},  {{2}, 9, 0, 5, 3},        {{2}, 4, 6, 0, 3},
                       {{2}, 6, 4, 3, 0},    {{2, 2}, 0, 5, 3, 4},     {{0, 3}, 5, 5, 2, 2},
                       {{2}, 131, 40, 7, 17}};

DType lane(DType dtype) { return dtype == DType::kF64 ? dtype : DType::kF32; }

Shape joined(Shape shape, std::initializer_list<int64_t> back) {
  shape.insert(shape.end(), back.begin(), back.end());
  return shape;
}

// Heads that are columns of one matrix of rows, as a projection leaves them, or plain memory.
Strides laid_out(const Shape& shape, bool split_heads) {
  if (!split_heads || shape.size() < 3) return contiguous_strides(shape);
  std::vector<size_t> order;
  for (size_t d = 0; d < shape.size(); ++d) order.push_back(d);
  std::swap(order[shape.size() - 3], order[shape.size() - 2]);
  return permuted_strides(shape, order);
}

void expect_attention(DType dtype, const Case& c, AttentionOptions options, bool with_bias,
                      bool split_heads, int schedules) {
  options.scale = 0.6;
  options.seed = 12;
  options.offset = 345;
  const auto array = [&](int64_t rows, int64_t columns, int64_t salt) {
    const Shape shape = joined(c.lead, {rows, columns});
    return with_strides(sample(dtype, shape, -1.5, 1.5, salt), laid_out(shape, split_heads));
  };
  const Array q = array(c.queries, c.features, 1);
  const Array k = array(c.keys, c.features, 2);
  const Array v = array(c.keys, c.columns, 3);
  const Array g = array(c.queries, c.columns, 4);
  const Array out = array(c.queries, c.columns, 5);
  const Array lse = empty(lane(dtype), joined(c.lead, {c.queries}));
  // One bias for all heads; its last query sees nothing.
  Array bias = filled(empty(lane(dtype), {c.queries, c.keys}), [&](int64_t i) {
    return i / c.keys == c.queries - 1 || i % 5 == 3 ? -kInf : noise(i, -1, 1);
  });
  bias.view.shape = joined(c.lead, {c.queries, c.keys});
  bias.view.strides = joined(Strides(c.lead.size(), 0), {c.keys, 1});
  const std::string what = "attention of " + to_string(bias.shape()) + (with_bias ? ", bias" : "") +
                           (options.is_causal ? ", causal" : "") + ", dropout " +
                           std::to_string(options.dropout_p);
  expect_same(
      what, {q, k, v, bias, out, lse}, 4, 16,
      [=](const Views& a) {
        launch<kernels::Attention>(a[0].device, a[0], a[1], a[2], with_bias ? &a[3] : nullptr,
                                   options, a[4], a[5]);
      },
      schedules, 16);
  kernels::Attention::cpu(q.view, k.view, v.view, with_bias ? &bias.view : nullptr, options,
                          out.view, lse.view);
  // Sums over keys (or queries) of numbers up to 2 or 3.
  expect_same(
      what + ", gradients",
      {g, q, k, v, bias, out, lse, array(c.queries, c.features, 6), array(c.keys, c.features, 7),
       array(c.keys, c.columns, 8)},
      7, 16,
      [=](const Views& a) {
        launch<kernels::AttentionBackward>(a[0].device, a[0], a[1], a[2], a[3],
                                           with_bias ? &a[4] : nullptr, options, a[5], a[6], a[7],
                                           a[8], a[9]);
      },
      schedules, 4 * (c.queries + c.keys));
}

TEST(CudaAttention, IsTheCpusForEveryDtypeAndSize) {
  for (DType dtype : kFloats) {
    bool split = false;
    for (const Case& c : kCases) {
      split = !split;
      for (bool causal : {false, true}) {
        AttentionOptions options;
        options.is_causal = causal;
        expect_attention(dtype, c, options, false, split, 1);
        expect_attention(dtype, c, options, true, !split, 1);
      }
    }
  }
}

TEST(CudaAttention, DropsTheCpusWeights) {
  for (DType dtype : kFloats) {
    for (double p : {0.3, 1.0}) {
      for (bool causal : {false, true}) {
        AttentionOptions options;
        options.is_causal = causal;
        options.dropout_p = p;
        expect_attention(dtype, {{2, 3}, 33, 67, 5, 7}, options, causal, true, 1);
      }
    }
  }
}

TEST(CudaAttention, IsTheSameUnderEverySchedule) {
  AttentionOptions options;
  options.is_causal = true;
  options.dropout_p = 0.2;
  expect_attention(DType::kF32, {{2}, 66, 70, 17, 18}, options, true, true, 20);
  expect_attention(DType::kF64, {{2}, 35, 34, 3, 18}, options, true, true, 10);
}

TEST(CudaAttention, ScoresThatAreNoNumbersStayWithTheirQueries) {
  const Array q = sample(DType::kF32, {5, 3});
  q.set(3, kNan);
  q.set(7, kInf);
  const Array k = sample(DType::kF32, {70, 3}, 0.1, 1);
  AttentionOptions options;
  expect_same(
      "attention",
      {q, k, sample(DType::kF32, {70, 4}), empty(DType::kF32, {5, 4}), empty(DType::kF32, {5})}, 3,
      16, [=](const Views& v) {
        launch<kernels::Attention>(v[0].device, v[0], v[1], v[2], nullptr, options, v[3], v[4]);
      });
}

}  // namespace
}  // namespace lockstep::testing
