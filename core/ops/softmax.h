#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

Tensor softmax(const Tensor& x, int64_t dim);
Tensor log_softmax(const Tensor& x, int64_t dim);

}  // namespace lockstep
