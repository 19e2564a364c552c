#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

// Modules in a row: each gets what the one before returned. They are named by their places, "0",
// "1", …, so that a weight reads "0.weight".
//
//   auto net = std::make_shared<Sequential>(std::make_shared<Linear>(4, 8),
//                                           std::make_shared<ReLU>());
//   net->add<Linear>(8, 2);
class Sequential : public Module {
 public:
  Sequential() = default;
  template <class... Ms>
  requires(sizeof...(Ms) > 0 && (std::derived_from<Ms, Module> &&
                                 ...)) explicit Sequential(std::shared_ptr<Ms>... modules) {
    (push_back(std::move(modules)), ...);
  }

  Tensor forward(const Tensor& x) override;

  void push_back(std::shared_ptr<Module> module);
  // push_back of a new M(args…), which is returned.
  template <class M, class... Args>
  std::shared_ptr<M> add(Args&&... args) {
    auto module = std::make_shared<M>(std::forward<Args>(args)...);
    push_back(module);
    return module;
  }

  size_t size() const { return children().size(); }
  // Throws Error(kInvalidArgument) out of range.
  const std::shared_ptr<Module>& operator[](size_t place) const;
};

}  // namespace lockstep::nn
