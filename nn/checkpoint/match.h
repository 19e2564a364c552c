#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/nn/checkpoint/state.h"

// Matching by name, for the parts of a state. Differences go into the plan's report.
namespace lockstep::nn {

// `wanted` and `stored` have names without `prefix`. What has the same name, shape and dtype on
// both sides is going to be copied into the wanted tensor. Returns how many those are.
int64_t match_tensors(const NamedTensors& wanted, const NamedTensors& stored,
                      const std::string& prefix, LoadPlan& plan);

// `wanted` has full names, those in `stored` lack `prefix`. Calls accept(name without prefix,
// stored value) for each that is there with the wanted type. Whatever else is stored is unexpected.
void match_values(const std::vector<NamedValue>& wanted, const Contents& stored,
                  const std::string& prefix, LoadPlan& plan,
                  const std::function<void(const std::string&, const Value&)>& accept);

}  // namespace lockstep::nn
