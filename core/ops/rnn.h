#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Recurrent layers over a whole sequence, time first. L steps of N samples; H is the size of the
// hidden state. `gates` are the input's part of the gates, x w_ih^T + bias, for all steps at once.
// Floating tensors of one dtype.

// Long short-term memory (Hochreiter and Schmidhuber, 1997, with a forget gate): gates (L, N, 4 H)
// in the order i, f, g, o, h0 and c0 (N, H), w_hh (4 H, H). With all four complete,
//   c = sigmoid(f) c + sigmoid(i) tanh(g);   h = sigmoid(o) tanh(c).
// Returns (L + 1, N, H): h after each step, then c after the last.
Tensor lstm_sequence(const Tensor& gates, const Tensor& h0, const Tensor& c0, const Tensor& w_hh);

// Gated recurrent unit (Cho et al., 2014, as cuDNN and PyTorch have it): gates (L, N, 3 H) in the
// order r, z, n, h0 (N, H), w_hh (3 H, H), b_hh (3 H) or undefined.
//   n = tanh(n_x + sigmoid(r) n_h);   h = (1 - sigmoid(z)) n + sigmoid(z) h,
// where n_x is the input's part and n_h = h w_hn^T + b_hn. Returns (L, N, H).
Tensor gru_sequence(const Tensor& gates, const Tensor& h0, const Tensor& w_hh, const Tensor& b_hh);

}  // namespace lockstep
