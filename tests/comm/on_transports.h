#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

// A test for each transport.
class OnTransports : public ::testing::TestWithParam<std::string> {
 protected:
  void on_ranks(int n, const std::function<void(Communicator&)>& fn,
                std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    run_ranks(n, fn, options_of({GetParam(), ""}, timeout));
  }
};

inline const auto kTransports = ::testing::Values("thread", "shm", "tcp");
inline std::string transport_name(const ::testing::TestParamInfo<std::string>& one) {
  return one.param;
}

// The sum over the group of 10^world_rank: the digits show who is in it.
inline int64_t members(Communicator& group) {
  int64_t value = 1;
  for (int i = 0; i < group.world_rank(); ++i) value *= 10;
  group.all_reduce(&value, &value, 1, DType::kI64, ReduceOp::kSum).wait();
  return value;
}

}  // namespace lockstep::comm
