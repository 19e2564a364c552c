#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

using NamedNumbers = std::vector<std::pair<std::string, double>>;

// Changes parameters by their gradients.
//
//   SGD optimizer(net.named_parameters(), {.lr = 0.1, .momentum = 0.9});
//   optimizer.zero_grad();
//   loss.backward();
//   optimizer.step();
//
// Parameters come in groups, each with options of its own: the constructor makes group 0, add_group
// of the classes below the next. An optimiser shares the tensors: it goes on changing the ones it
// was given, not tensors that replace them in a module later.
//
// Every state and option has a name, so that a checkpoint can hold all of it: state
// "momentum_buffer.features.0.weight", options "group0.lr".
//
// Thread safety: none.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One step, not recorded. A parameter without a gradient is skipped: neither decayed nor counted.
  // To the graph it is a change in place.
  void step();
  // Gradients become null.
  void zero_grad();

  size_t group_count() const { return groups_.size(); }
  NamedTensors named_parameters() const;  // of all groups
  NamedTensors named_parameters(size_t group) const;

  // Throw Error(kInvalidArgument) for a group or a name that does not exist, or a value out of
  // range. Without a group set_lr() sets the rate of every group.
  double lr(size_t group = 0) const { return option("lr", group); }
  void set_lr(double lr);
  void set_lr(double lr, size_t group) { set_option("lr", lr, group); }
  double option(std::string_view name, size_t group = 0) const;
  void set_option(std::string_view name, double value, size_t group = 0);

  // All options of all groups: "group0.lr", "group0.momentum", …; true is 1. Loading is strict and
  // changes nothing when it throws Error(kMismatch), which lists every missing and unexpected name.
  NamedNumbers named_options() const;
  void load_named_options(const NamedNumbers& options);

  // The state of each parameter that has been stepped; these are the optimiser's own tensors.
  virtual NamedTensors named_state() const;
  // Bytes of state that this rank keeps.
  virtual int64_t state_bytes() const;
  // Copies `state` in; a parameter that it does not mention becomes one that was never stepped.
  // Throws Error(kMismatch) that lists every name that is unexpected, has another shape or dtype,
  // or lacks its companions ("exp_avg" without "exp_avg_sq"); then nothing was changed.
  virtual void load_named_state(const NamedTensors& state);
  // The same check alone, for those who load several things or none.
  void check_named_state(const NamedTensors& state) const;

  // Whether `mine` is true on every rank that steps together, which is this one alone but for
  // ShardedOptimizer, where it is collective.
  virtual bool agree(bool mine) const { return mine; }

 protected:
  friend class ShardedOptimizer;

  // A kind of state that an optimiser keeps for each parameter: a count (i64, no dimensions), or a
  // tensor of the parameter's shape, dtype and memory order.
  struct StateKind {
    std::string name;
    bool is_count = false;
    bool is_optional = false;  // kept under some options alone
  };
  // One parameter with what the optimiser keeps for it. `state` has one tensor for each of
  // state_kinds(), undefined until the first step that needs it.
  struct Entry {
    std::string name;
    Tensor parameter;
    std::vector<Tensor> state;
  };
  struct Group {
    NamedNumbers options;
    std::vector<Entry> entries;

    double option(std::string_view name) const;
  };

  Optimizer() = default;

  // Throws Error(kInvalidArgument) unless `parameters` holds leaves of floating dtypes, each dense
  // in memory, all on one device, that are in no group yet, under names that are in no group yet,
  // and check_options() accepts `options`.
  void append_group(NamedTensors parameters, NamedNumbers options);

  virtual std::vector<StateKind> state_kinds() const = 0;
  // Whether the step of an element depends on its own gradient and state alone, so that parameters
  // may be cut in pieces.
  virtual bool is_elementwise() const { return false; }
  // Zeros for a state of `parameter`. Counts are the host's, which reads them at every step.
  static Tensor make_state(const StateKind& kind, const Tensor& parameter);
  // State other than counts moves to where the parameter is now.
  static void follow(Entry& entry);
  // The parameter's gradient in the parameter's memory order.
  static Tensor gradient(const Entry& entry);
  // Throws Error(kInvalidArgument) that names an option out of range.
  virtual void check_options(const Group& group) const = 0;
  // Steps the entries, of which there are some, all with gradients, under NoGrad.
  virtual void update(const Group& group, const std::vector<Entry*>& entries) = 0;

 private:
  const Group& group_at(size_t group) const;

  std::vector<Group> groups_;
};

// Names for tensors that come without: the tensor's own name() or "parameter.<place>".
NamedTensors named(const std::vector<Tensor>& tensors);

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // needs momentum and no dampening
};

// g += weight_decay p;  b = momentum b + (1 - dampening) g, at first b = g;
// p -= lr (nesterov ? g + momentum b : b), or lr g without momentum (Sutskever et al., 2013, as
// PyTorch has it: the rate multiplies the buffer).
class SGD : public Optimizer {
 public:
  explicit SGD(NamedTensors parameters, const SGDOptions& options = {});
  explicit SGD(const std::vector<Tensor>& parameters, const SGDOptions& options = {})
      : SGD(named(parameters), options) {}
  void add_group(NamedTensors parameters, const SGDOptions& options);

 protected:
  std::vector<StateKind> state_kinds() const override;
  bool is_elementwise() const override { return true; }
  void check_options(const Group& group) const override;
  void update(const Group& group, const std::vector<Entry*>& entries) override;
};

struct AdamOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
};

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
// p -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) (Kingma and Ba, 2015), where t counts the
// steps of each parameter and weight_decay p is added to g first.
class Adam : public Optimizer {
 public:
  explicit Adam(NamedTensors parameters, const AdamOptions& options = {});
  explicit Adam(const std::vector<Tensor>& parameters, const AdamOptions& options = {})
      : Adam(named(parameters), options) {}
  void add_group(NamedTensors parameters, const AdamOptions& options);

 protected:
  // What is done with the moments; its name in errors.
  enum class Kind { kAdam, kAdamW, kLAMB };
  // Without a group yet.
  explicit Adam(Kind kind) : kind_(kind) {}

  std::vector<StateKind> state_kinds() const override;
  bool is_elementwise() const override { return kind_ != Kind::kLAMB; }
  void check_options(const Group& group) const override;
  void update(const Group& group, const std::vector<Entry*>& entries) override;

 private:
  std::string_view kind_name() const;

  Kind kind_ = Kind::kAdam;
};

struct AdamWOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

// Adam with p -= lr weight_decay p first, instead of a decay in the gradient (Loshchilov and
// Hutter, 2019).
class AdamW : public Adam {
 public:
  explicit AdamW(NamedTensors parameters, const AdamWOptions& options = {});
  explicit AdamW(const std::vector<Tensor>& parameters, const AdamWOptions& options = {})
      : AdamW(named(parameters), options) {}
  void add_group(NamedTensors parameters, const AdamWOptions& options);
};

struct LAMBOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 0;
};

// Adam's direction, with weight_decay p added to it, and a rate for each tensor: lr |p| / |step|
// with L2 norms, lr where one of these is 0 (You et al., 2020, for large batches).
class LAMB : public Adam {
 public:
  explicit LAMB(NamedTensors parameters, const LAMBOptions& options = {});
  explicit LAMB(const std::vector<Tensor>& parameters, const LAMBOptions& options = {})
      : LAMB(named(parameters), options) {}
  void add_group(NamedTensors parameters, const LAMBOptions& options);
};

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};

// v = alpha v + (1 - alpha) g^2;  p -= lr g / (sqrt(v) + eps) (Tieleman and Hinton, 2012), where
// weight_decay p is added to g first. `centered` takes the square of the mean gradient off v
// (Graves, 2013); with momentum the quotients are summed, b = momentum b + g / (…), and p -= lr b.
class RMSprop : public Optimizer {
 public:
  explicit RMSprop(NamedTensors parameters, const RMSpropOptions& options = {});
  explicit RMSprop(const std::vector<Tensor>& parameters, const RMSpropOptions& options = {})
      : RMSprop(named(parameters), options) {}
  void add_group(NamedTensors parameters, const RMSpropOptions& options);

 protected:
  std::vector<StateKind> state_kinds() const override;
  bool is_elementwise() const override { return true; }
  void check_options(const Group& group) const override;
  void update(const Group& group, const std::vector<Entry*>& entries) override;
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;  // what the sum of squares starts from
  double eps = 1e-10;
};

// s += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) (Duchi, Hazan and Singer, 2011),
// where t counts the steps of each parameter and weight_decay p is added to g first.
class Adagrad : public Optimizer {
 public:
  explicit Adagrad(NamedTensors parameters, const AdagradOptions& options = {});
  explicit Adagrad(const std::vector<Tensor>& parameters, const AdagradOptions& options = {})
      : Adagrad(named(parameters), options) {}
  void add_group(NamedTensors parameters, const AdagradOptions& options);

 protected:
  std::vector<StateKind> state_kinds() const override;
  bool is_elementwise() const override { return true; }
  void check_options(const Group& group) const override;
  void update(const Group& group, const std::vector<Entry*>& entries) override;
};

// Scales all gradients by min(1, max_norm / (norm + 1e-6)), where norm is the L2 norm of all of
// them as one vector, and returns the norm as it was. A norm that is not finite leaves NaN or zero
// behind, so test the result where that can happen. Parameters without a gradient do not count.
// Under DataParallel call it after backward(): gradients are the group's average by then. (With a
// ShardedOptimizer that averages them itself, use its clip_grad_norm().)
double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

// Puts every element of every gradient within [-max_value, max_value].
void clip_grad_value_(const std::vector<Tensor>& parameters, double max_value);

}  // namespace lockstep::nn
