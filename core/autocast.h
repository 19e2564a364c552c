#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Mixed precision (Micikevicius et al., 2018): within the scope ops of this thread convert their
// floating operands, f64 ones excepted, by the list that they are on.
//
//   in `dtype`     matmul, linear, linear_gelu, conv2d, scaled_dot_product_attention,
//                  lstm_sequence, gru_sequence: products
//   in f32         softmax, log_softmax, sum, mean, layer_norm, group_norm, instance_norm and the
//                  losses: what adds many numbers, or needs a wide range
//   in the wider   element-wise arithmetic of two operands that differ
//   as they come   everything else
//
// Parameters stay what they are; conversions are recorded, so that a gradient has its parameter's
// dtype. Backward runs every op as forward did, and should be called outside of the scope, as the
// optimiser's step. dtype is bf16 or f16; the small gradients of f16 need a GradScaler.
//
//   Tensor loss;
//   {
//     const Autocast autocast(DType::kBF16);
//     loss = cross_entropy(net->forward(x), y);
//   }
//   loss.backward();
class Autocast {
 public:
  // With `enabled` false the scope switches an outer one off. Throws Error(kInvalidArgument) for
  // another dtype.
  explicit Autocast(DType dtype = DType::kBF16, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  // Of the calling thread now.
  static bool is_enabled();
  static DType dtype();

 private:
  bool enabled_before_;
  DType dtype_before_;
};

// What ops on the first, second and third list do with an operand; x itself outside of a scope, and
// where nothing is to be done. An undefined tensor stays undefined.
Tensor autocast_low(const Tensor& x);
Tensor autocast_f32(const Tensor& x);
// x in the wider dtype of x and other.
Tensor autocast_wider(const Tensor& x, const Tensor& other);

}  // namespace lockstep
