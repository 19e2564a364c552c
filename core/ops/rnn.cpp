#include "lockstep/core/ops/rnn.h"

#include <memory>

#include "lockstep/core/autocast.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/engine.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/matmul.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

// A sequence is one node of the graph: a node for each step would give each a gradient of the whole
// sequence. Its backward walks the steps by hand where nothing is recorded; where backward itself
// is, the steps are recorded anew and differentiated.
namespace lockstep {
namespace {

void check_sequence(std::string_view op, const Tensor& gates, const Tensor& h0, const Tensor& w_hh,
                    int64_t parts) {
  check_same(op, gates, h0);
  check_same(op, gates, w_hh);
  check(is_floating(gates.dtype()) && gates.dim() == 3 && h0.dim() == 2 && w_hh.dim() == 2 &&
            gates.size(0) > 0 && gates.size(1) == h0.size(0) &&
            gates.size(2) == parts * h0.size(1) && w_hh.size(0) == parts * h0.size(1) &&
            w_hh.size(1) == h0.size(1),
        op, [&] {
          return str_cat("want gates (L, N, ", parts,
                         " H) of one step and more, h0 (N, H) and w_hh (", parts, " H, H), got ",
                         to_string(gates.shape()), ", ", to_string(h0.shape()), " and ",
                         to_string(w_hh.shape()));
        });
}

// Part `i` of gates (N, parts * H).
Tensor part(const Tensor& gates, int64_t i, int64_t hidden) {
  return narrow(gates, 1, i * hidden, hidden);
}

// Derivatives by what sigmoid and tanh gave.
Tensor d_sigmoid(const Tensor& y) { return y * (1 - y); }
Tensor d_tanh(const Tensor& y) { return 1 - square(y); }

// h0 and the states after each step but the last, (L * N, H).
Tensor states_before(const Tensor& h0, const Tensor& states, int64_t steps) {
  const Tensor first = unsqueeze(h0, 0);
  const Tensor parts[] = {first, narrow(states, 0, 0, steps - 1)};
  return reshape(steps == 1 ? first : cat(parts, 0), {steps * h0.size(0), h0.size(1)});
}

// The steps. `kept`, where not null, takes what each leaves for backward: the activations of the
// gates (N, 4 H) and c (N, H).
struct LstmKept {
  Tensors activations;
  Tensors cells;
};

Tensor lstm_steps(const Tensor& gates, const Tensor& h0, const Tensor& c0, const Tensor& w_hh,
                  LstmKept* kept) {
  const int64_t hidden = h0.size(1);
  const Tensor w = w_hh.t();
  Tensor h = h0;
  Tensor c = c0;
  Tensors out;
  for (int64_t t = 0; t < gates.size(0); ++t) {
    const Tensor sums = select(gates, 0, t) + matmul(h, w);
    const Tensor i = sigmoid(part(sums, 0, hidden));
    const Tensor f = sigmoid(part(sums, 1, hidden));
    const Tensor g = tanh(part(sums, 2, hidden));
    const Tensor o = sigmoid(part(sums, 3, hidden));
    c = f * c + i * g;
    h = o * tanh(c);
    out.push_back(h);
    if (kept != nullptr) {
      for (const Tensor& x : {i, f, g, o}) kept->activations.push_back(x);
      kept->cells.push_back(c);
    }
  }
  out.push_back(c);
  return stack(out, 0);
}

Tensors lstm_backward(const Tensor& g, const LstmKept& kept, const Tensor& h0, const Tensor& c0,
                      const Tensor& w_hh, const Tensor& states) {
  const auto steps = static_cast<int64_t>(kept.cells.size());
  Tensor dh = zeros_like(h0);
  Tensor dc = select(g, 0, steps);
  Tensors slopes(static_cast<size_t>(steps));
  for (int64_t t = steps - 1; t >= 0; --t) {
    const Tensor* a = &kept.activations[static_cast<size_t>(4 * t)];  // i, f, g, o
    const Tensor tanh_c = tanh(kept.cells[static_cast<size_t>(t)]);
    const Tensor c_before = t == 0 ? c0 : kept.cells[static_cast<size_t>(t - 1)];
    dh = select(g, 0, t) + dh;
    dc = dc + dh * a[3] * d_tanh(tanh_c);
    const Tensor parts[] = {dc * a[2] * d_sigmoid(a[0]), dc * c_before * d_sigmoid(a[1]),
                            dc * a[0] * d_tanh(a[2]), dh * tanh_c * d_sigmoid(a[3])};
    slopes[static_cast<size_t>(t)] = cat(parts, 1);
    dh = matmul(slopes[static_cast<size_t>(t)], w_hh);
    dc = dc * a[1];
  }
  const Tensor all = stack(slopes, 0);
  const Tensor rows = reshape(all, {steps * h0.size(0), w_hh.size(0)});
  return {all, dh, dc, matmul(rows.t(), states_before(h0, states, steps))};
}

struct GruKept {
  Tensors activations;  // r, z, n of each step, and the state's part of n
};

Tensor gru_steps(const Tensor& gates, const Tensor& h0, const Tensor& w_hh, const Tensor& b_hh,
                 GruKept* kept) {
  const int64_t hidden = h0.size(1);
  Tensor h = h0;
  Tensors out;
  for (int64_t t = 0; t < gates.size(0); ++t) {
    const Tensor x = select(gates, 0, t);
    const Tensor s = linear(h, w_hh, b_hh);
    const Tensor r = sigmoid(part(x, 0, hidden) + part(s, 0, hidden));
    const Tensor z = sigmoid(part(x, 1, hidden) + part(s, 1, hidden));
    const Tensor n_h = part(s, 2, hidden);
    const Tensor n = tanh(part(x, 2, hidden) + r * n_h);
    h = (1 - z) * n + z * h;
    out.push_back(h);
    if (kept != nullptr) {
      for (const Tensor& y : {r, z, n, n_h}) kept->activations.push_back(y);
    }
  }
  return stack(out, 0);
}

Tensors gru_backward(const Tensor& g, const GruKept& kept, const Tensor& h0, const Tensor& w_hh,
                     const Tensor& states) {
  const int64_t steps = states.size(0);
  Tensor dh = zeros_like(h0);
  Tensors of_input(static_cast<size_t>(steps));
  Tensors of_state(static_cast<size_t>(steps));
  for (int64_t t = steps - 1; t >= 0; --t) {
    const auto at = static_cast<size_t>(t);
    const Tensor* a = &kept.activations[4 * at];  // r, z, n, n_h
    const Tensor before = t == 0 ? h0 : select(states, 0, t - 1);
    dh = select(g, 0, t) + dh;
    const Tensor dz = dh * (before - a[2]) * d_sigmoid(a[1]);
    const Tensor dn = dh * (1 - a[1]) * d_tanh(a[2]);
    const Tensor dr = dn * a[3] * d_sigmoid(a[0]);
    const Tensor input_parts[] = {dr, dz, dn};
    const Tensor state_parts[] = {dr, dz, dn * a[0]};
    of_input[at] = cat(input_parts, 1);
    of_state[at] = cat(state_parts, 1);
    dh = dh * a[1] + matmul(of_state[at], w_hh);
  }
  const Tensor rows = reshape(stack(of_state, 0), {steps * h0.size(0), w_hh.size(0)});
  return {stack(of_input, 0), dh, matmul(rows.t(), states_before(h0, states, steps)),
          sum(rows, {0})};
}

}  // namespace

Tensor lstm_sequence(const Tensor& gates_in, const Tensor& h0_in, const Tensor& c0_in,
                     const Tensor& w_hh_in) {
  const Tensor gates = autocast_low(gates_in);
  const Tensor h0 = autocast_low(h0_in);
  const Tensor c0 = autocast_low(c0_in);
  const Tensor w_hh = autocast_low(w_hh_in);
  check_sequence("lstm_sequence", gates, h0, w_hh, 4);
  check_same("lstm_sequence", gates, c0);
  check(c0.shape() == h0.shape(), "lstm_sequence", [&] {
    return str_cat("want c0 in the shape of h0, ", to_string(h0.shape()), ", got ",
                   to_string(c0.shape()));
  });
  const bool is_recorded = grad_enabled();
  const auto kept = std::make_shared<LstmKept>();
  Tensor out;
  {
    const NoGrad no_grad;
    out = lstm_steps(gates, h0, c0, w_hh, is_recorded ? kept.get() : nullptr);
  }
  return record("lstm_sequence", out, {gates, h0, c0, w_hh},
                [gates = Saved(gates), h0 = Saved(h0), c0 = Saved(c0), w_hh = Saved(w_hh),
                 states = Saved::result(out), kept](const Tensor& g) {
                  const Tensors in = {gates.get(), h0.get(), c0.get(), w_hh.get()};
                  if (!grad_enabled()) {
                    return lstm_backward(g, *kept, in[1], in[2], in[3], states.get());
                  }
                  const Tensor again = lstm_steps(in[0], in[1], in[2], in[3], nullptr);
                  return engine::partial_gradients(again, g, in, true);
                });
}

Tensor gru_sequence(const Tensor& gates_in, const Tensor& h0_in, const Tensor& w_hh_in,
                    const Tensor& b_hh_in) {
  const Tensor gates = autocast_low(gates_in);
  const Tensor h0 = autocast_low(h0_in);
  const Tensor w_hh = autocast_low(w_hh_in);
  const Tensor b_hh = autocast_low(b_hh_in);
  check_sequence("gru_sequence", gates, h0, w_hh, 3);
  const bool is_recorded = grad_enabled();
  const auto kept = std::make_shared<GruKept>();
  Tensor out;
  {
    const NoGrad no_grad;
    out = gru_steps(gates, h0, w_hh, b_hh, is_recorded ? kept.get() : nullptr);
  }
  return record("gru_sequence", out, {gates, h0, w_hh, b_hh},
                [gates = Saved(gates), h0 = Saved(h0), w_hh = Saved(w_hh), b_hh = Saved(b_hh),
                 states = Saved::result(out), kept](const Tensor& g) {
                  const Tensors in = {gates.get(), h0.get(), w_hh.get(), b_hh.get()};
                  if (!grad_enabled()) {
                    return gru_backward(g, *kept, in[1], in[2], states.get());
                  }
                  const Tensor again = gru_steps(in[0], in[1], in[2], in[3], nullptr);
                  return engine::partial_gradients(again, g, in, true);
                });
}

}  // namespace lockstep
