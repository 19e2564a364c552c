#pragma once

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// Modules of one kind under the names "0", "1", …; what is done with them is the owner's to say.
//
//   blocks_ = register_module("blocks", std::make_shared<ModuleList<Block>>());
//   for (int i = 0; i < 4; ++i) blocks_->push_back(std::make_shared<Block>(256));
//   …
//   for (const auto& block : *blocks_) x = block->forward(x);
template <std::derived_from<Module> M = Module>
class ModuleList : public Module {
 public:
  void push_back(std::shared_ptr<M> module) {
    modules_.push_back(register_module(absl::StrCat(modules_.size()), std::move(module)));
  }
  // push_back of a new N(args…), which is returned.
  template <std::derived_from<M> N = M, class... Args>
  std::shared_ptr<N> add(Args&&... args) {
    auto module = std::make_shared<N>(std::forward<Args>(args)...);
    push_back(module);
    return module;
  }

  size_t size() const { return modules_.size(); }
  // Throws Error(kInvalidArgument) out of range.
  const std::shared_ptr<M>& operator[](size_t place) const {
    check(place < size(), "ModuleList", [&] {
      return absl::StrCat("want a place below ", size(), ", the number of modules, got ", place);
    });
    return modules_[place];
  }
  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }

 private:
  std::vector<std::shared_ptr<M>> modules_;
};

}  // namespace lockstep::nn
