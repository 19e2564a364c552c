#pragma once

#include <optional>

#include "lockstep/core/random.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

struct AttentionOptions {
  // Broadcasts to (…, L, S). bool: true where a query sees a key; floating: added; undefined: none.
  Tensor mask = {};
  // Query i sees keys 0 … i alone, beside what the mask says.
  bool is_causal = false;
  // Weights are dropped with this probability and the others scaled by 1 / (1 - dropout_p). Drawn
  // from `generator`, or from default_generator() where it is null.
  double dropout_p = 0;
  Generator* generator = nullptr;
  // What scores are multiplied with; none: 1 / sqrt(E).
  std::optional<double> scale = {};
};

// softmax(scale q k^T + mask) v for queries q (…, L, E), keys k (…, S, E) and values v (…, S, D):
// (…, L, D) (Vaswani et al., 2017). Leading dimensions broadcast. A query that sees no key gets
// zeros. Floating dtypes; 16-bit ones are computed in f32.
//
// The (L, S) weights of a head are never in memory as a whole, and backward computes them again
// from one number for each query (Dao et al., 2022) - but for a floating mask that requires a
// gradient, and where backward itself is recorded (create_graph).
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

}  // namespace lockstep
