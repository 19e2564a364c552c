#pragma once

#include <cstdint>

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

struct AttentionOptions {
  double scale = 1;
  bool is_causal = false;  // query i sees keys 0 … i alone
  // Weights are dropped with this probability, the others scaled by 1 / (1 - dropout_p). Which
  // ones is a function of the two numbers below: those for which Bernoulli, over weights
  // (…, L, S) in f32 with p = 1 - dropout_p, gives 0.
  double dropout_p = 0;
  uint64_t seed = 0;
  uint64_t offset = 0;
};

// out = dropout(softmax(scale q k^T + bias)) v for q (…, L, E), k (…, S, E), v (…, S, D) and
// out (…, L, D), all of one floating dtype and with equal leading dimensions; 16-bit ones are
// computed in f32. The weights are made for a block of queries at a time, in memory that does not
// grow with L S, and not kept. bias, null for none, is (…, L, S) of any strides, in the dtype that
// is computed in. lse (…, L), contiguous and of that dtype too, takes the logarithm of each
// softmax's denominator. A query that sees no key (all are at -inf) gets zeros, and lse = inf.
struct Attention {
  static void cpu(const View& q, const View& k, const View& v, const View* bias,
                  const AttentionOptions& options, const View& out, const View& lse);
  static void cuda(const View& q, const View& k, const View& v, const View* bias,
                   const AttentionOptions& options, const View& out, const View& lse);
};

// The gradients of Attention for g, that of out. Weights are computed again from lse (Dao et al.,
// 2022). gq, gk and gv have the shapes of q, k and v.
struct AttentionBackward {
  static void cpu(const View& g, const View& q, const View& k, const View& v, const View* bias,
                  const AttentionOptions& options, const View& out, const View& lse, const View& gq,
                  const View& gk, const View& gv);
  static void cuda(const View& g, const View& q, const View& k, const View& v, const View* bias,
                   const AttentionOptions& options, const View& out, const View& lse,
                   const View& gq, const View& gk, const View& gv);
};

}  // namespace lockstep::kernels
