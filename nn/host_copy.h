#pragma once

#include "lockstep/core/tensor.h"

// How the host comes to the values of tensors that it reads itself, to write a file, say.
namespace lockstep::nn {

// The values in memory of the CPU, row-major and out of the graph: the tensor's own memory where
// they are so already. Waits for a tensor's device.
Tensor on_host(const Tensor& tensor);

// The same, a copy in any case, in pinned memory where the tensor is on a CUDA device. That copy is
// only put on the device's current stream: it may be read once an event behind it has been passed.
// The tensor may be changed or let go by what comes later on that stream.
Tensor host_copy(const Tensor& tensor);

}  // namespace lockstep::nn
