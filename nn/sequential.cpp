#include "lockstep/nn/sequential.h"

#include "absl/strings/str_cat.h"

namespace lockstep::nn {

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const auto& [name, module] : children()) y = module->forward(y);
  return y;
}

void Sequential::push_back(std::shared_ptr<Module> module) {
  register_module(absl::StrCat(size()), std::move(module));
}

const std::shared_ptr<Module>& Sequential::operator[](size_t place) const {
  check(place < size(), "Sequential", [&] {
    return absl::StrCat("want a place below ", size(), ", the number of modules, got ", place);
  });
  return children()[place].second;
}

}  // namespace lockstep::nn
