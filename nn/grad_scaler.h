#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  // The ranks that decide together; then unscale() and the step() that stands for it are
  // collective. Null: this rank alone, or those of a ShardedOptimizer.
  std::shared_ptr<comm::Communicator> group = nullptr;
};

// Keeps the small gradients of f16 from becoming zero: the loss is multiplied by a scale before
// backward, and gradients are divided by it before the step, which is left out where one is inf or
// NaN. The scale falls by backoff_factor after such a step and grows by growth_factor after
// growth_interval steps without one (Micikevicius et al., 2018).
//
//   GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale(optimizer);              // where gradients are clipped
//   clip_grad_norm_(net->parameters(), 1);
//   scaler.step(optimizer);
//   scaler.update();
//
// Under DataParallel the reduced gradients are the same on every rank, and so is what is decided
// here: one rank's overflow stops the step of all. Where gradients may differ by rank (parameters
// that DataParallel is told to ignore, say) options.group has all ranks agree. A ShardedOptimizer's
// ranks always do. Thread safety: none.
class GradScaler {
 public:
  // Throws Error(kInvalidArgument) for factors on the wrong side of 1 or an interval below 1.
  explicit GradScaler(const GradScalerOptions& options = {});

  double scale() const { return scale_; }
  Tensor scale(const Tensor& loss) const;
  // Divides the gradients of the optimiser's parameters by the scale; once between updates, else an
  // Error(kInvalidArgument).
  void unscale(Optimizer& optimizer);
  // unscale() where that was not done, then the optimiser's step unless a gradient is not finite.
  // Returns whether the step was taken. Once for each optimiser between updates.
  bool step(Optimizer& optimizer);
  // Adapts the scale to whether a step since the last update met a gradient that is not finite.
  // Throws Error(kInvalidArgument) when no optimiser was unscaled or stepped.
  void update();

  // "scale" and "growth_tracker", for checkpoints. Loading throws Error(kMismatch) for other names
  // and for values out of range; then nothing was changed.
  NamedNumbers named_state() const;
  void load_named_state(const NamedNumbers& state);

 private:
  struct Seen {
    const Optimizer* optimizer;
    bool finite;
    bool stepped = false;
  };
  Seen* find(const Optimizer& optimizer);

  GradScalerOptions options_;
  double scale_;
  int64_t good_steps_ = 0;
  std::vector<Seen> seen_;  // since the last update
};

}  // namespace lockstep::nn
