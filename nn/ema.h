#pragma once

#include <cstdint>

#include "lockstep/nn/module.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {

// An exponential moving average of a model, which often tests better than the model itself
// (Polyak and Juditsky, 1992). The first update() takes the parameters as they are, each further
// one average = decay average + (1 - decay) parameter, in the parameter's dtype. Buffers are taken
// as they are every time.
//
//   ExponentialMovingAverage average(*net, 0.999);
//   …
//   optimizer.step();
//   average.update();
//   …
//   average.swap();     // the net holds the averages, the average the net's own values
//   evaluate(*net);
//   average.swap();
//
// Replicas that are equal have equal averages: every rank keeps its own, and nothing is sent.
// Thread safety: none. The module must outlive it and keep its tensors.
class ExponentialMovingAverage {
 public:
  // Throws Error(kInvalidArgument) unless 0 <= decay <= 1.
  explicit ExponentialMovingAverage(const Module& module, double decay = 0.999);

  // Throws Error(kInvalidArgument) while the values are swapped.
  void update();
  // Exchanges the values of the module and of the average; twice is nothing. To the graph it is a
  // change in place.
  void swap();
  bool is_swapped() const { return swapped_; }
  int64_t updates() const { return updates_; }

  // The averages under the names of the module's parameters and buffers, and "updates", for
  // checkpoints. Loading copies values and throws Error(kMismatch) that lists every name that is
  // missing, unexpected, or of another shape or dtype; then nothing was changed.
  NamedTensors named_state() const;
  void load_named_state(const NamedTensors& state);

 private:
  struct Pair {
    std::string name;
    Tensor live;
    Tensor average;
    bool is_parameter;
  };
  void follow();

  double decay_;
  std::vector<Pair> pairs_;
  int64_t updates_ = 0;
  bool swapped_ = false;
};

}  // namespace lockstep::nn
