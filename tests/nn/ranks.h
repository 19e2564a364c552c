#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/tensor.h"

namespace lockstep::nn {

// Runs fn on n ranks that are threads of this process; the communicator outlives fn.
inline void with_ranks(int n, const std::function<void(std::shared_ptr<comm::Communicator>)>& fn) {
  comm::run_ranks(n, [&](comm::Communicator& group) {
    fn(std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {}));
  });
}

// The values of tensors, for ranks to compare with: a module itself is for one thread.
inline std::vector<std::vector<float>> values_of(const std::vector<Tensor>& tensors) {
  std::vector<std::vector<float>> values;
  for (const Tensor& tensor : tensors) values.push_back(tensor.to_vector<float>());
  return values;
}

}  // namespace lockstep::nn
