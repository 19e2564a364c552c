#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::nn {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// A part of a model: parameters, buffers and further modules, each under a name.
//
//   class Net : public Module {
//    public:
//     Net() {
//       body_ = register_module("body", std::make_shared<Linear>(784, 10));
//       register_parameter("scale", scale_);
//     }
//     Tensor forward(const Tensor& x) override { return body_->forward(x) * scale_; }
//
//    private:
//     std::shared_ptr<Linear> body_;
//     Tensor scale_ = Tensor::ones({10});
//   };
//
// Names are dotted paths from the module that is asked: "body.weight", "scale". Lists are in order
// of registration: a module's own entries first, then its children's. A tensor or a module that
// occurs more than once is listed once, under its first name.
//
// Thread safety: none; every rank has a module of its own.
class Module : public std::enable_shared_from_this<Module> {
 public:
  using NamedModules = std::vector<std::pair<std::string, std::shared_ptr<Module>>>;

  Module() = default;
  Module(const Module&) = delete;  // the registry points into the module
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  // Throws Error(kInvalidArgument) unless the class has a forward of one tensor.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x) { return forward(x); }

  // The class's name, "Linear", and what to_string() shows in its parentheses, "bias=true".
  virtual std::string type_name() const;
  virtual std::string extra_repr() const { return ""; }
  // The tree of modules, one line for each.
  std::string to_string() const;

  // The tensors that the members hold now; one that became undefined is left out. Sets the tensors'
  // names to these paths, so that errors read "features.0.weight" (a longer path that ends in the
  // same one, from a module higher up, stays).
  NamedTensors named_parameters() const;
  std::vector<Tensor> parameters() const;
  NamedTensors named_buffers(bool persistent_only = false) const;
  int64_t parameter_count() const;  // elements, not tensors
  // Calls f for what each parameter's member holds now, in order, without building names: one that
  // is shared comes as often as it is registered, and one may be undefined.
  void for_each_parameter(const std::function<void(const Tensor&)>& f) const;

  // The modules held directly.
  const NamedModules& children() const { return children_; }
  // This module, named "", and all below it. Throws Error(kInvalidArgument) unless this one is held
  // by a shared_ptr.
  NamedModules named_modules();
  // Calls f for this module and all below it, each once, parents first.
  void apply(const std::function<void(Module&)>& f);

  // Training mode, which is on at first; recursive.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }

  // Gradients become null.
  void zero_grad();
  // Converts floating parameters, their gradients and buffers. Tensors stay the same objects, so
  // that optimisers go on; state that an optimiser already has is not converted.
  void to(DType dtype);
  // Moves parameters, their gradients and buffers, in the same way; an optimiser's state follows at
  // its next step. Throws Error(kDevice) for a device that this build or machine does not have.
  void to(Device device);

 protected:
  // The three below throw Error(kInvalidArgument) for a name that is empty, contains a dot or is
  // taken.

  // `slot` is a member of this module: the registry keeps a pointer to it, and lists the tensor
  // that it holds when asked. The tensor must be defined; it is made to require a gradient.
  void register_parameter(std::string name, Tensor& slot);
  // A tensor that is no parameter and yet part of the model's state; checkpoints hold the
  // persistent ones.
  void register_buffer(std::string name, Tensor& slot, bool persistent = true);
  // Returns `module`. A module registered under the empty name adds nothing to the paths of what it
  // holds; it must be the only thing registered.
  template <class M>
  std::shared_ptr<M> register_module(std::string name, std::shared_ptr<M> module) {
    add_child(std::move(name), module);
    return module;
  }

 private:
  struct Slot {
    std::string name;
    Tensor* tensor;
    bool persistent;
  };
  using Visitor = std::function<void(const std::string& path, const Module& module)>;

  void visit(const Visitor& visitor) const;
  NamedTensors collect(std::vector<Slot> Module::*slots, bool persistent_only) const;
  void check_slot(std::string_view op, const std::string& name, const Tensor& slot) const;
  void check_name(std::string_view op, const std::string& name) const;
  void add_child(std::string name, std::shared_ptr<Module> module);
  void print(std::string& out, size_t indent) const;
  // Parameters, their gradients and buffers become what f makes of them.
  void convert(const std::function<Tensor(const Tensor&)>& f);

  std::vector<Slot> parameters_;
  std::vector<Slot> buffers_;
  NamedModules children_;
  bool training_ = true;
};

}  // namespace lockstep::nn
