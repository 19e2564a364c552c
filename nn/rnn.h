#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct RNNOptions {
  int64_t num_layers = 1;
  bool bias = true;
  double dropout = 0;  // of each layer's result but the last's, in training mode
  bool bidirectional = false;
};

// What LSTM and GRU share: layers "l0", "l1", … of weights weight_ih_l0 (G H, input), weight_hh_l0
// (G H, H), bias_ih_l0 and bias_hh_l0 (G H), with the suffix "_reverse" for the layers that read a
// sequence from its end; G gates, H = hidden_size. All start from U(-b, b), b = 1 / sqrt(H). The
// results of both directions are joined, so that a layer gives D H features, D = 1 or 2.
class RNNBase : public Module {
 public:
  // x (N, L, input_size) -> (N, L, D H), from states of zeros. The batch comes first.
  Tensor forward(const Tensor& x) override = 0;
  std::string extra_repr() const override;

 protected:
  RNNBase(int64_t input_size, int64_t hidden_size, int64_t gates, const RNNOptions& options);

  struct Weights {
    Tensor weight_ih;
    Tensor weight_hh;
    Tensor bias_ih;  // undefined where there is none, like bias_hh
    Tensor bias_hh;
  };

  int64_t directions() const { return options_.bidirectional ? 2 : 1; }
  // Of a layer and a direction, 1 for the reverse one.
  const Weights& weights(int64_t layer, int64_t direction) const {
    return weights_[static_cast<size_t>(layer * directions() + direction)];
  }
  // Checks x and the state, (num_layers D, N, H) or undefined, for which zeros are returned.
  Tensor checked_state(const Tensor& x, const Tensor& state, const char* what) const;
  // Runs all layers over x; step(x, layer, direction), with x (L, N, features) in the order of the
  // direction, gives (L, N, H).
  Tensor run(const Tensor& x,
             const std::function<Tensor(const Tensor& x, int64_t layer, int64_t direction)>& step);

  RNNOptions options_;
  int64_t input_size_;
  int64_t hidden_size_;

 private:
  std::deque<Weights> weights_;  // registered by address
};

struct LSTMState {
  Tensor h = {};  // (num_layers D, N, H); undefined: zeros
  Tensor c = {};
};

struct LSTMResult {
  Tensor y;  // (N, L, D H)
  LSTMState state;
};

// Long short-term memory; see lstm_sequence(). Gates in the order i, f, g, o.
class LSTM : public RNNBase {
 public:
  LSTM(int64_t input_size, int64_t hidden_size, const RNNOptions& options = {});

  Tensor forward(const Tensor& x) override { return forward(x, {}).y; }
  // From a state, and with the state after the last step of each layer and direction.
  LSTMResult forward(const Tensor& x, const LSTMState& state);
};

struct GRUResult {
  Tensor y;  // (N, L, D H)
  Tensor h;  // (num_layers D, N, H)
};

// Gated recurrent units; see gru_sequence(). Gates in the order r, z, n.
class GRU : public RNNBase {
 public:
  GRU(int64_t input_size, int64_t hidden_size, const RNNOptions& options = {});

  Tensor forward(const Tensor& x) override { return forward(x, Tensor()).y; }
  GRUResult forward(const Tensor& x, const Tensor& h);
};

}  // namespace lockstep::nn
