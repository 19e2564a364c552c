#include "lockstep/nn/rnn.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/index.h"
#include "lockstep/core/ops/matmul.h"
#include "lockstep/core/ops/rnn.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {
namespace {

// x (L, N, …) with the last step first.
Tensor reversed(const Tensor& x) {
  const Tensor places = Tensor::arange(x.size(0), {DType::kI64, x.device()});
  return index_select(x, 0, static_cast<double>(x.size(0) - 1) - places);
}

}  // namespace

RNNBase::RNNBase(int64_t input_size, int64_t hidden_size, int64_t gates, const RNNOptions& options)
    : options_(options), input_size_(input_size), hidden_size_(hidden_size) {
  check(
      input_size > 0 && hidden_size > 0 && options.num_layers > 0 && options.dropout >= 0 &&
          options.dropout <= 1,
      "RNN", [&] {
        return absl::StrCat(
            "want input_size, hidden_size and num_layers of 1 and more and a dropout from 0 to 1, "
            "got ",
            input_size, ", ", hidden_size, ", ", options.num_layers, " and ", options.dropout);
      });
  const double bound = 1 / std::sqrt(static_cast<double>(hidden_size));
  const auto add = [&](const std::string& name, Tensor& slot, const Shape& shape) {
    slot = Tensor::empty(shape);
    uniform_(slot, -bound, bound);
    register_parameter(name, slot);
  };
  for (int64_t layer = 0; layer < options.num_layers; ++layer) {
    for (int64_t direction = 0; direction < directions(); ++direction) {
      const std::string suffix = absl::StrCat("_l", layer, direction == 1 ? "_reverse" : "");
      const int64_t features = layer == 0 ? input_size : directions() * hidden_size;
      Weights& w = weights_.emplace_back();
      add("weight_ih" + suffix, w.weight_ih, {gates * hidden_size, features});
      add("weight_hh" + suffix, w.weight_hh, {gates * hidden_size, hidden_size});
      if (!options.bias) continue;
      add("bias_ih" + suffix, w.bias_ih, {gates * hidden_size});
      add("bias_hh" + suffix, w.bias_hh, {gates * hidden_size});
    }
  }
}

Tensor RNNBase::checked_state(const Tensor& x, const Tensor& state, const char* what) const {
  check(x.dim() == 3 && x.size(1) > 0 && x.size(2) == input_size_, type_name(), [&] {
    return absl::StrCat("want x (N, L, ", input_size_, ") of one step and more, got ",
                        lockstep::to_string(x.shape()));
  });
  const Shape wanted = {options_.num_layers * directions(), x.size(0), hidden_size_};
  if (!state.defined()) return Tensor::zeros(wanted, x.options());
  check(state.shape() == wanted, type_name(), [&] {
    return absl::StrCat("want a state ", what, " ", lockstep::to_string(wanted), ", got ",
                        lockstep::to_string(state.shape()));
  });
  return state;
}

Tensor RNNBase::run(
    const Tensor& x,
    const std::function<Tensor(const Tensor& x, int64_t layer, int64_t direction)>& step) {
  Tensor y = transpose(x, 0, 1);
  for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
    if (layer > 0 && is_training()) y = dropout(y, options_.dropout);
    const Tensor forward = step(y, layer, 0);
    if (directions() == 1) {
      y = forward;
      continue;
    }
    const Tensor both[] = {forward, reversed(step(reversed(y), layer, 1))};
    y = cat(both, 2);
  }
  return transpose(y, 0, 1);
}

std::string RNNBase::extra_repr() const {
  return absl::StrCat(input_size_, ", ", hidden_size_, ", num_layers=", options_.num_layers,
                      ", bidirectional=", options_.bidirectional ? "true" : "false");
}

LSTM::LSTM(int64_t input_size, int64_t hidden_size, const RNNOptions& options)
    : RNNBase(input_size, hidden_size, 4, options) {}

LSTMResult LSTM::forward(const Tensor& x, const LSTMState& state) {
  const Tensor h0 = checked_state(x, state.h, "h");
  const Tensor c0 = checked_state(x, state.c, "c");
  const int64_t steps = x.size(1);
  std::vector<Tensor> h;
  std::vector<Tensor> c;
  const Tensor y = run(x, [&](const Tensor& in, int64_t layer, int64_t direction) {
    const Weights& w = weights(layer, direction);
    const int64_t place = layer * directions() + direction;
    const Tensor bias = w.bias_ih.defined() ? w.bias_ih + w.bias_hh : Tensor();
    const Tensor all = lstm_sequence(linear(in, w.weight_ih, bias), select(h0, 0, place),
                                     select(c0, 0, place), w.weight_hh);
    h.push_back(select(all, 0, steps - 1));
    c.push_back(select(all, 0, steps));
    return narrow(all, 0, 0, steps);
  });
  return {y, {stack(h, 0), stack(c, 0)}};
}

GRU::GRU(int64_t input_size, int64_t hidden_size, const RNNOptions& options)
    : RNNBase(input_size, hidden_size, 3, options) {}

GRUResult GRU::forward(const Tensor& x, const Tensor& h) {
  const Tensor h0 = checked_state(x, h, "h");
  std::vector<Tensor> last;
  const Tensor y = run(x, [&](const Tensor& in, int64_t layer, int64_t direction) {
    const Weights& w = weights(layer, direction);
    const Tensor all =
        gru_sequence(linear(in, w.weight_ih, w.bias_ih),
                     select(h0, 0, layer * directions() + direction), w.weight_hh, w.bias_hh);
    last.push_back(select(all, 0, -1));
    return all;
  });
  return {y, stack(last, 0)};
}

}  // namespace lockstep::nn
