#pragma once

#include "lockstep/core/autograd.h"

// The walk from outputs to leaves. Library-internal; users call backward() and grad().
namespace lockstep::engine {

// Runs backward in the calling thread, youngest node first. With `inputs` their gradients are
// returned, undefined where nothing arrived, and no leaf is touched; else leaves accumulate.
Tensors run(const Tensors& outputs, const Tensors& gradients, BackwardOptions options,
            const Tensors* inputs);

// The node whose backward function is running in this thread; null outside.
std::shared_ptr<Node> current_node();

}  // namespace lockstep::engine
