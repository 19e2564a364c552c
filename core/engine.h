#pragma once

#include "lockstep/core/autograd.h"

// The walk from outputs to leaves. Library-internal; users call backward() and grad().
namespace lockstep::engine {

// Runs backward in the calling thread, youngest node first. With `inputs` their gradients are
// returned, undefined where nothing arrived, and no leaf is touched; else leaves accumulate.
Tensors run(const Tensors& outputs, const Tensors& gradients, BackwardOptions options,
            const Tensors* inputs);

// For the inside of a node that computes its gradients from a graph of its own: what `gradient`, of
// `output`, gives each of the node's inputs by ways that lead through no other of them. Their hooks
// are not called, since the gradient reaches them again from the node. An undefined tensor is given
// to inputs that need no gradient, and to one that comes a second time. With `create_graph` the
// gradients are recorded.
Tensors partial_gradients(const Tensor& output, const Tensor& gradient, const Tensors& inputs,
                          bool create_graph);

// The node whose backward function is running in this thread; null outside.
const std::shared_ptr<Node>& current_node();

// Whether the node whose backward function is running cannot run again.
bool releases_graph();

// The sum of what other nodes have given input `index` of that node so far, for the node to add its
// own part to in place; it then returns an undefined tensor. Undefined where there is nothing yet,
// somebody else holds it, or a graph is being made.
Tensor open_sum(size_t index);

// A number that is greater than those of all nodes that exist and less than those of all to come.
uint64_t next_sequence();

}  // namespace lockstep::engine
