#include "lockstep/nn/grad_norm.h"

#include <vector>

#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/optim.h"

namespace lockstep::nn {

double squared_norm(std::span<const Tensor> tensors) {
  double squares = 0;
  for (size_t i = 0; i < tensors.size();) {
    const Device device = tensors[i].device();
    std::vector<View> views;
    for (; i < tensors.size() && tensors[i].device() == device; ++i) {
      views.push_back(tensors[i].view());
    }
    squares += launch<kernels::L2NormSquared>(device, views);
  }
  return squares;
}

}  // namespace lockstep::nn
