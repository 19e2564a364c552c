#include "lockstep/nn/ema.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {

ExponentialMovingAverage::ExponentialMovingAverage(const Module& module, double decay)
    : decay_(decay) {
  check(decay >= 0 && decay <= 1, "ExponentialMovingAverage",
        [&] { return absl::StrCat("want a decay from 0 to 1, got ", decay); });
  const NoGrad no_grad;
  for (const auto& [name, tensor] : module.named_parameters()) {
    pairs_.push_back({name, tensor, clone(tensor), true});
  }
  for (const auto& [name, tensor] : module.named_buffers()) {
    pairs_.push_back({name, tensor, clone(tensor), false});
  }
}

// The module may have moved to another device.
void ExponentialMovingAverage::follow() {
  for (Pair& pair : pairs_) pair.average = to(pair.average, pair.live.device());
}

void ExponentialMovingAverage::update() {
  check(!swapped_, "ExponentialMovingAverage",
        "the module holds the averages; swap() back before update()");
  const NoGrad no_grad;
  follow();
  for (Pair& pair : pairs_) {
    if (updates_ == 0 || !pair.is_parameter) {
      pair.average.copy_(pair.live);
    } else {
      pair.average.add_(pair.live - pair.average, 1 - decay_);
    }
  }
  ++updates_;
}

void ExponentialMovingAverage::swap() {
  const NoGrad no_grad;
  follow();
  for (Pair& pair : pairs_) {
    const Tensor live = clone(pair.live);
    pair.live.copy_(pair.average);
    pair.average.copy_(live);
  }
  swapped_ = !swapped_;
}

NamedTensors ExponentialMovingAverage::named_state() const {
  NamedTensors out;
  for (const Pair& pair : pairs_) {
    out.emplace_back(pair.name, (swapped_ ? pair.live : pair.average).detach());
  }
  out.emplace_back("updates", Tensor::from<int64_t>({updates_}, {}));
  return out;
}

void ExponentialMovingAverage::load_named_state(const NamedTensors& state) {
  std::map<std::string, Tensor> values(state.begin(), state.end());
  std::vector<std::string> problems;
  const auto describe = [](const Tensor& x) {
    return x.defined() ? str_cat(name(x.dtype()), " ", to_string(x.shape())) : "nothing";
  };
  std::vector<Tensor> found;
  const NamedTensors wanted = named_state();
  for (const auto& [name, tensor] : wanted) {
    const Tensor value = values[name];
    if (describe(value) != describe(tensor)) {
      problems.push_back(
          absl::StrCat(name, ": want ", describe(tensor), ", got ", describe(value)));
    }
    found.push_back(value);
    values.erase(name);
  }
  for (const auto& [name, tensor] : values) problems.push_back(name + " is unexpected");
  if (!problems.empty()) {
    throw Error(
        ErrorCode::kMismatch, "load_named_state",
        absl::StrCat("what is loaded does not fit this average, so nothing was changed:\n  ",
                     absl::StrJoin(problems, "\n  ")));
  }
  const NoGrad no_grad;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    (swapped_ ? pairs_[i].live : pairs_[i].average).copy_(found[i]);
  }
  updates_ = found.back().item_i64();
}

}  // namespace lockstep::nn
