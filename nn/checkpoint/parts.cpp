#include <optional>

#include "lockstep/core/autograd.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/match.h"
#include "lockstep/nn/checkpoint/state.h"

// One class for each kind of thing that a TrainingState holds.
namespace lockstep::nn {
namespace {

class ModulePart : public StatePart {
 public:
  ModulePart(std::string name, Module& module) : StatePart(std::move(name)), module_(module) {}

  void collect(Contents& out) const override {
    for (auto& [inner, tensor] : state_dict(module_)) out.tensors.emplace_back(full(inner), tensor);
  }

  void plan(const Contents& stored, LoadPlan& plan) override {
    plan_module(module_, full(""), stored.tensors, plan);
    for (const NamedValue& value : stored.values) {
      plan.report.unexpected.push_back(full(value.name));
    }
  }

 private:
  Module& module_;
};

// State and options of an optimiser are loaded in full or not at all.
class OptimizerPart : public StatePart {
 public:
  OptimizerPart(std::string name, Optimizer& optimizer)
      : StatePart(std::move(name)), optimizer_(optimizer) {}

  void collect(Contents& out) const override {
    for (const auto& [inner, number] : optimizer_.named_options()) {
      out.values.push_back({full(inner), number});
    }
    for (auto& [inner, tensor] : optimizer_.named_state()) {
      out.tensors.emplace_back(full(inner), tensor);
    }
  }

  void plan(const Contents& stored, LoadPlan& plan) override {
    if (stored.empty()) {
      plan.report.missing.push_back(full("… (an optimiser)"));
      return;
    }
    NamedNumbers options;
    for (const NamedValue& value : stored.values) {
      if (const auto* number = std::get_if<double>(&value.value)) {
        options.emplace_back(value.name, *number);
      } else {
        plan.report.unexpected.push_back(full(value.name));
      }
    }
    const NamedNumbers before = optimizer_.named_options();
    try {
      optimizer_.check_named_state(stored.tensors);
      // All or nothing, so that a load and a load back is a check.
      optimizer_.load_named_options(options);
      optimizer_.load_named_options(before);
    } catch (const Error& error) {
      plan.report.mismatched.push_back(str_cat(name(), ": ", error.what()));
      return;
    }
    plan.report.loaded += static_cast<int64_t>(options.size() + stored.tensors.size());
    plan.set_numbers.push_back([this, options] { optimizer_.load_named_options(options); });
    plan.copy_tensors.push_back(
        [this, tensors = stored.tensors] { optimizer_.load_named_state(tensors); });
  }

 private:
  Optimizer& optimizer_;
};

class NumbersPart : public StatePart {
 public:
  NumbersPart(std::string name, std::function<NamedNumbers()> get,
              std::function<void(const NamedNumbers&)> set)
      : StatePart(std::move(name)), get_(std::move(get)), set_(std::move(set)) {}

  void collect(Contents& out) const override {
    for (const auto& [inner, number] : get_()) out.values.push_back({full(inner), number});
  }

  void plan(const Contents& stored, LoadPlan& plan) override {
    Contents wanted;
    collect(wanted);
    NamedNumbers state;
    match_values(wanted.values, stored, full(""), plan,
                 [&](const std::string& inner, const Value& value) {
                   state.emplace_back(inner, std::get<double>(value));
                 });
    if (state.size() != wanted.values.size()) return;
    plan.set_numbers.push_back([this, state] { set_(state); });
  }

 private:
  std::function<NamedNumbers()> get_;
  std::function<void(const NamedNumbers&)> set_;
};

class SamplerPart : public StatePart {
 public:
  SamplerPart(std::string name, Sampler& sampler) : StatePart(std::move(name)), sampler_(sampler) {}

  void collect(Contents& out) const override {
    const Sampler::State state = sampler_.state();
    out.values.push_back({full("epoch"), state.epoch});
    out.values.push_back({full("places_done"), state.samples_done * sampler_.ranks()});
  }

  // Places of the order that all ranks share, so that another number of ranks goes on from there.
  void plan(const Contents& stored, LoadPlan& plan) override {
    Contents wanted;
    collect(wanted);
    std::optional<int64_t> epoch;
    std::optional<int64_t> places;
    match_values(wanted.values, stored, full(""), plan,
                 [&](const std::string& inner, const Value& value) {
                   (inner == "epoch" ? epoch : places) = std::get<int64_t>(value);
                 });
    if (!epoch || !places) return;
    const int64_t done = *places / sampler_.ranks();
    if (*epoch < 0 || *places < 0 || done > sampler_.size()) {
      plan.report.mismatched.push_back(
          str_cat(name(), ": want a place in epochs of ", sampler_.size(), " samples on each of ",
                  sampler_.ranks(), " ranks, got place ", *places, " of epoch ", *epoch));
      return;
    }
    plan.set_numbers.push_back(
        [this, state = Sampler::State{*epoch, done}] { sampler_.resume(state); });
  }

 private:
  Sampler& sampler_;
};

class LoaderPart : public StatePart {
 public:
  LoaderPart(std::string name, DataLoader& loader) : StatePart(std::move(name)), loader_(loader) {}

  void collect(Contents& out) const override {
    const DataLoader::State state = loader_.state();
    out.values.push_back({full("epoch"), state.epoch});
    out.values.push_back({full("batches_done"), state.batches_done});
  }

  void plan(const Contents& stored, LoadPlan& plan) override {
    Contents wanted;
    collect(wanted);
    std::optional<int64_t> epoch;
    std::optional<int64_t> batches;
    match_values(wanted.values, stored, full(""), plan,
                 [&](const std::string& inner, const Value& value) {
                   (inner == "epoch" ? epoch : batches) = std::get<int64_t>(value);
                 });
    if (!epoch || !batches) return;
    if (*epoch < 0 || *batches < 0 || *batches > loader_.size()) {
      plan.report.mismatched.push_back(str_cat(name(), ": want a place in epochs of ",
                                               loader_.size(), " batches, got batch ", *batches,
                                               " of epoch ", *epoch, " (another batch size?)"));
      return;
    }
    plan.set_numbers.push_back(
        [this, state = DataLoader::State{*epoch, *batches}] { loader_.resume(state); });
  }

 private:
  DataLoader& loader_;
};

class TensorPart : public StatePart {
 public:
  TensorPart(std::string name, Tensor& tensor) : StatePart(std::move(name)), tensor_(tensor) {}

  void collect(Contents& out) const override { out.tensors.emplace_back(name(), tensor_); }

  void plan(const Contents& stored, LoadPlan& plan) override {
    if (!tensor_.defined() && !stored.tensors.empty()) {
      ++plan.report.loaded;
      plan.copy_tensors.push_back([this, loaded = stored.tensors[0].second] { tensor_ = loaded; });
    } else {
      match_tensors({{"", tensor_}}, stored.tensors, name(), plan);
    }
    for (const NamedValue& value : stored.values) {
      plan.report.unexpected.push_back(name() + value.name);
    }
  }

 private:
  Tensor& tensor_;
};

class TensorsPart : public StatePart {
 public:
  TensorsPart(std::string name, NamedTensors tensors)
      : StatePart(std::move(name)), tensors_(std::move(tensors)) {}

  void collect(Contents& out) const override {
    for (const auto& [inner, tensor] : tensors_) out.tensors.emplace_back(full(inner), tensor);
  }

  void plan(const Contents& stored, LoadPlan& plan) override {
    match_tensors(tensors_, stored.tensors, full(""), plan);
    for (const NamedValue& value : stored.values) {
      plan.report.unexpected.push_back(full(value.name));
    }
  }

 private:
  NamedTensors tensors_;
};

class AveragePart : public StatePart {
 public:
  AveragePart(std::string name, ExponentialMovingAverage& average)
      : StatePart(std::move(name)), average_(average) {}

  void collect(Contents& out) const override {
    for (auto& [inner, tensor] : average_.named_state()) {
      out.tensors.emplace_back(full(inner), tensor);
    }
  }

  // What is loaded goes through copies, since the number of updates is no tensor of the average.
  void plan(const Contents& stored, LoadPlan& plan) override {
    NamedTensors loaded;
    {
      NoGrad no_grad;
      for (const auto& [inner, tensor] : average_.named_state()) {
        loaded.emplace_back(inner, tensor.clone());
      }
    }
    match_tensors(loaded, stored.tensors, full(""), plan);
    for (const NamedValue& value : stored.values) {
      plan.report.unexpected.push_back(full(value.name));
    }
    plan.copy_tensors.push_back([this, loaded] { average_.load_named_state(loaded); });
  }

 private:
  ExponentialMovingAverage& average_;
};

template <class T>
class ValuePart : public StatePart {
 public:
  ValuePart(std::string name, T& value) : StatePart(std::move(name)), value_(value) {}

  void collect(Contents& out) const override { out.values.push_back({name(), value_}); }

  void plan(const Contents& stored, LoadPlan& plan) override {
    Contents wanted;
    collect(wanted);
    match_values(wanted.values, stored, name(), plan, [&](const std::string&, const Value& value) {
      plan.set_numbers.push_back([this, loaded = std::get<T>(value)] { value_ = loaded; });
    });
  }

 private:
  T& value_;
};

}  // namespace

std::unique_ptr<StatePart> make_part(std::string name, Module& module) {
  return std::make_unique<ModulePart>(std::move(name), module);
}
std::unique_ptr<StatePart> make_part(std::string name, Optimizer& optimizer) {
  return std::make_unique<OptimizerPart>(std::move(name), optimizer);
}
std::unique_ptr<StatePart> make_part(std::string name, std::function<NamedNumbers()> get,
                                     std::function<void(const NamedNumbers&)> set) {
  return std::make_unique<NumbersPart>(std::move(name), std::move(get), std::move(set));
}
std::unique_ptr<StatePart> make_part(std::string name, Sampler& sampler) {
  return std::make_unique<SamplerPart>(std::move(name), sampler);
}
std::unique_ptr<StatePart> make_part(std::string name, NamedTensors tensors) {
  return std::make_unique<TensorsPart>(std::move(name), std::move(tensors));
}
std::unique_ptr<StatePart> make_part(std::string name, ExponentialMovingAverage& average) {
  return std::make_unique<AveragePart>(std::move(name), average);
}
std::unique_ptr<StatePart> make_part(std::string name, DataLoader& loader) {
  return std::make_unique<LoaderPart>(std::move(name), loader);
}
std::unique_ptr<StatePart> make_part(std::string name, Tensor& tensor) {
  return std::make_unique<TensorPart>(std::move(name), tensor);
}
std::unique_ptr<StatePart> make_part(std::string name, int64_t& value) {
  return std::make_unique<ValuePart<int64_t>>(std::move(name), value);
}
std::unique_ptr<StatePart> make_part(std::string name, uint64_t& value) {
  return std::make_unique<ValuePart<uint64_t>>(std::move(name), value);
}
std::unique_ptr<StatePart> make_part(std::string name, double& value) {
  return std::make_unique<ValuePart<double>>(std::move(name), value);
}
std::unique_ptr<StatePart> make_part(std::string name, std::string& value) {
  return std::make_unique<ValuePart<std::string>>(std::move(name), value);
}

}  // namespace lockstep::nn
