#pragma once

#include "lockstep/core/autograd.h"

namespace lockstep {

// `backward` of an op with these inputs, which checks what it gives: see anomaly.h. To be called
// from record(). Library-internal.
BackwardFunction watched(std::string_view op, std::span<const Tensor> inputs,
                         BackwardFunction backward);

}  // namespace lockstep
