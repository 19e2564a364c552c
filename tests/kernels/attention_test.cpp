#include "lockstep/kernels/attention.h"

#include <gtest/gtest.h>

#include <string>

#include "arrays.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/philox.h"

namespace lockstep::kernels {
namespace {

using namespace lockstep::testing;  // NOLINT: the helpers of these tests

DType lane(DType dtype) { return dtype == DType::kF64 ? dtype : DType::kF32; }

struct Problem {
  int64_t heads, queries, keys, features, columns;  // heads: of all leading dimensions
  AttentionOptions options;
};

// The definition and its gradients, head by head, in double. Elements are counted row-major.
struct Want {
  std::vector<double> out, lse, gq, gk, gv;
};

Want want(const Problem& p, const Array& q, const Array& k, const Array& v, const Array* bias,
          const Array& g, const Array* keep) {
  Want w;
  w.gk.resize(static_cast<size_t>(p.heads * p.keys * p.features));
  w.gv.resize(static_cast<size_t>(p.heads * p.keys * p.columns));
  const AttentionOptions& o = p.options;
  for (int64_t r = 0; r < p.heads * p.queries; ++r) {
    const int64_t h = r / p.queries;
    const int64_t seen = o.is_causal ? std::min(p.keys, r % p.queries + 1) : p.keys;
    std::vector<double> weight(static_cast<size_t>(p.keys)), factor(weight.size(), 1);
    double total = 0;
    for (int64_t j = 0; j < seen; ++j) {
      double score = 0;
      for (int64_t e = 0; e < p.features; ++e) {
        score += q.get(r * p.features + e) * k.get((h * p.keys + j) * p.features + e);
      }
      score = score * o.scale + (bias ? bias->get(r * p.keys + j) : 0);
      total += weight[static_cast<size_t>(j)] = std::exp(score);
      if (keep) factor[static_cast<size_t>(j)] = keep->get(r * p.keys + j) / (1 - o.dropout_p);
    }
    w.lse.push_back(total == 0 ? kInf : std::log(total));
    for (double& x : weight) x = total == 0 ? 0 : x / total;
    double mean = 0;
    std::vector<double> slope(weight.size());
    for (int64_t c = 0; c < p.columns; ++c) {
      double y = 0;
      const double gy = g.get(r * p.columns + c);
      for (int64_t j = 0; j < seen; ++j) {
        const auto i = static_cast<size_t>(j);
        const int64_t at = (h * p.keys + j) * p.columns + c;
        y += weight[i] * factor[i] * v.get(at);
        slope[i] += gy * v.get(at) * factor[i];
        w.gv[static_cast<size_t>(at)] += weight[i] * factor[i] * gy;
      }
      w.out.push_back(y);
      mean += gy * y;
    }
    for (int64_t e = 0; e < p.features; ++e) {
      double gq = 0;
      for (int64_t j = 0; j < seen; ++j) {
        const auto i = static_cast<size_t>(j);
        const int64_t at = (h * p.keys + j) * p.features + e;
        const double s = weight[i] * (slope[i] - mean) * o.scale;
        gq += s * k.get(at);
        w.gk[static_cast<size_t>(at)] += s * q.get(r * p.features + e);
      }
      w.gq.push_back(gq);
    }
  }
  return w;
}

void expect_close(const Array& got, const std::vector<double>& wanted, double factor,
                  const std::string& what) {
  const DType dtype = got.view.dtype;
  for (int64_t i = 0; i < got.numel(); ++i) {
    // Weights and slopes in 16 bits start from values that were rounded when they were stored.
    ASSERT_TRUE(close(got.get(i), wanted[static_cast<size_t>(i)], 4 * epsilon(dtype),
                      factor * epsilon(dtype)))
        << what << " " << i;
  }
}

// `lead` are the leading dimensions of q, k and v.
void expect_attention(DType dtype, const Shape& lead, Problem p, bool with_bias, bool split_heads) {
  SCOPED_TRACE(std::string(name(dtype)) + to_string(lead) + " queries " +
               std::to_string(p.queries) + " keys " + std::to_string(p.keys) +
               (with_bias ? " bias" : "") + (split_heads ? " split" : "") +
               (p.options.is_causal ? " causal" : "") + " p " +
               std::to_string(p.options.dropout_p));
  p.heads = numel(lead);
  const auto shape = [&](int64_t rows, int64_t columns) {
    Shape s = lead;
    s.push_back(rows);
    s.push_back(columns);
    return s;
  };
  // Heads that are columns of one matrix of rows, as a projection leaves them, or plain memory.
  const auto laid_out = [&](const Shape& s) {
    if (!split_heads || s.size() < 3) return contiguous_strides(s);
    std::vector<size_t> order;
    for (size_t d = 0; d < s.size(); ++d) order.push_back(d);
    std::swap(order[s.size() - 3], order[s.size() - 2]);
    Strides strides = permuted_strides(s, order);
    for (size_t d = 0; d + 3 <= s.size(); ++d) {
      if (d + 3 < s.size()) strides[d] *= 3;
    }
    strides[s.size() - 2] *= 3;
    return strides;
  };
  const auto array = [&](const Shape& s, int64_t salt) {
    return with_strides(sample(dtype, s, -1.5, 1.5, salt), laid_out(s));
  };
  const Array q = array(shape(p.queries, p.features), 1);
  const Array k = array(shape(p.keys, p.features), 2);
  const Array v = array(shape(p.keys, p.columns), 3);
  const Array g = array(shape(p.queries, p.columns), 4);
  // One bias for all heads; its last query sees nothing.
  Array bias = filled(empty(lane(dtype), {p.queries, p.keys}), [&](int64_t i) {
    return i / p.keys == p.queries - 1 || i % 5 == 3 ? -kInf : noise(i, -1, 1);
  });
  bias.view.shape = shape(p.queries, p.keys);
  bias.view.strides = Strides(lead.size(), 0);
  bias.view.strides.push_back(p.keys);
  bias.view.strides.push_back(1);
  const Array keep = empty(DType::kF32, shape(p.queries, p.keys));
  p.options.scale = 0.7;
  p.options.seed = 12;
  p.options.offset = 345;
  Bernoulli::cpu(keep.view, 1 - p.options.dropout_p, p.options.seed, p.options.offset);

  const Array out = empty(dtype, q.shape().size() ? shape(p.queries, p.columns) : Shape{});
  Shape lse_shape = lead;
  lse_shape.push_back(p.queries);
  const Array lse = empty(lane(dtype), lse_shape);
  const Array gq = empty(dtype, q.shape(), q.view.strides);
  const Array gk = empty(dtype, k.shape());
  const Array gv = empty(dtype, v.shape(), v.view.strides);
  const View* bias_view = with_bias ? &bias.view : nullptr;
  Attention::cpu(q.view, k.view, v.view, bias_view, p.options, out.view, lse.view);
  AttentionBackward::cpu(g.view, q.view, k.view, v.view, bias_view, p.options, out.view, lse.view,
                         gq.view, gk.view, gv.view);

  const Want w =
      want(p, q, k, v, with_bias ? &bias : nullptr, g, p.options.dropout_p > 0 ? &keep : nullptr);
  const double eps = epsilon(lane(dtype));
  for (int64_t i = 0; i < lse.numel(); ++i) {
    ASSERT_TRUE(close(lse.get(i), w.lse[static_cast<size_t>(i)], 16 * eps, 32 * eps)) << i;
  }
  expect_close(out, w.out, 16, "out");
  expect_close(gq, w.gq, 32, "gq");
  expect_close(gk, w.gk, 4 * static_cast<double>(8 + p.queries), "gk");
  expect_close(gv, w.gv, 4 * static_cast<double>(8 + p.queries), "gv");
}

TEST(Attention, EqualsItsDefinitionForEveryDtypeMaskAndMemoryOrder) {
  for (DType dtype : kFloats) {
    for (bool causal : {false, true}) {
      for (bool with_bias : {false, true}) {
        const Problem p = {0, 13, 17, 5, 7, {.is_causal = causal}};
        expect_attention(dtype, {2, 3}, p, with_bias, causal != with_bias);
      }
    }
  }
}

TEST(Attention, AnyNumberOfLeadingDimensionsAndMoreQueriesThanKeys) {
  expect_attention(DType::kF64, {}, {0, 9, 4, 3, 2, {}}, false, false);
  expect_attention(DType::kF64, {3}, {0, 9, 4, 3, 2, {.is_causal = true}}, true, false);
  expect_attention(DType::kF64, {2, 1, 3}, {0, 5, 7, 1, 1, {}}, true, true);
}

// 300 queries and keys are more weights than one block has, so that keys get parts from several.
TEST(Attention, BlocksOfQueriesAddUp) {
  for (bool causal : {false, true}) {
    expect_attention(DType::kF32, {1, 2}, {0, 301, 305, 4, 3, {.is_causal = causal}}, false, true);
    expect_attention(DType::kF32, {2}, {0, 5, 70001, 2, 1, {.is_causal = causal}}, false, false);
  }
}

TEST(Attention, DropsTheSameWeightsInBackward) {
  for (bool causal : {false, true}) {
    const AttentionOptions options = {.is_causal = causal, .dropout_p = 0.3};
    expect_attention(DType::kF32, {2, 3}, {0, 13, 17, 5, 7, options}, true, true);
    expect_attention(DType::kF64, {2}, {0, 301, 305, 4, 3, options}, false, false);
  }
}

TEST(Attention, LargeScoresDoNotOverflowAndNanSpreadsInItsRow) {
  const Array q =
      filled(empty(DType::kF32, {3, 1}), [](int64_t i) { return i == 1 ? kNan : 1e19; });
  const Array k =
      filled(empty(DType::kF32, {2, 1}), [](int64_t i) { return i == 0 ? 1e19 : 9e18; });
  const Array v = filled(empty(DType::kF32, {2, 1}), [](int64_t i) { return i == 0 ? 3 : 4; });
  const Array out = empty(DType::kF32, {3, 1});
  const Array lse = empty(DType::kF32, {3});
  Attention::cpu(q.view, k.view, v.view, nullptr, {}, out.view, lse.view);
  EXPECT_EQ(out.get(0), 3);
  EXPECT_TRUE(std::isnan(out.get(1)));
  EXPECT_EQ(out.get(2), 3);
}

TEST(Attention, NoKeysGiveZerosAndNothingIsNoWork) {
  const Array q = sample(DType::kF32, {2, 3, 4});
  const Array none = empty(DType::kF32, {2, 0, 4});
  const Array out = filled(empty(DType::kF32, {2, 3, 4}), [](int64_t) { return 5; });
  const Array lse = empty(DType::kF32, {2, 3});
  Attention::cpu(q.view, none.view, none.view, nullptr, {}, out.view, lse.view);
  EXPECT_EQ(out.values(), std::vector<double>(24, 0));
  const Array gq = filled(empty(DType::kF32, {2, 3, 4}), [](int64_t) { return 5; });
  AttentionBackward::cpu(q.view, q.view, none.view, none.view, nullptr, {}, out.view, lse.view,
                         gq.view, none.view, none.view);
  EXPECT_EQ(gq.values(), std::vector<double>(24, 0));
  const Array no_lse = empty(DType::kF32, {2, 0});
  const Array gk = filled(empty(DType::kF32, {2, 3, 4}), [](int64_t) { return 5; });
  Attention::cpu(none.view, q.view, q.view, nullptr, {}, none.view, no_lse.view);
  AttentionBackward::cpu(none.view, none.view, q.view, q.view, nullptr, {}, none.view, no_lse.view,
                         none.view, gk.view, gq.view);
  EXPECT_EQ(gk.values(), std::vector<double>(24, 0));
}

TEST(Attention, KeepsNoMatrixOfWeights) {
  const int64_t n = 2048;
  const Array q = sample(DType::kF32, {1, n, 8});
  const Array out = empty(DType::kF32, {1, n, 8});
  const Array lse = empty(DType::kF32, {1, n});
  const int64_t before = memory_stats().in_use;
  Attention::cpu(q.view, q.view, q.view, nullptr, {}, out.view, lse.view);
  EXPECT_EQ(memory_stats().in_use, before);
  // The scratch of a block, not 16 MiB.
  EXPECT_LT(memory_stats().peak_in_use - before, 4 << 20);
}

TEST(Attention, SeveralThreadsGiveTheSame) {
  const Array q = sample(DType::kF64, {3, 67, 8}, -1, 1, 1);
  const Array out = empty(DType::kF64, {3, 67, 8});
  const Array lse = empty(DType::kF64, {3, 67});
  std::vector<std::vector<double>> results;
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    Attention::cpu(q.view, q.view, q.view, nullptr, {.dropout_p = 0.2}, out.view, lse.view);
    results.push_back(out.values());
  }
  set_num_threads(0);
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace lockstep::kernels
