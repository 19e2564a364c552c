#include "lockstep/nn/stop_signal.h"

#include <gtest/gtest.h>

#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/error.h"

namespace lockstep::nn {
namespace {

volatile std::sig_atomic_t count = 0;
void count_it(int) { count = count + 1; }

TEST(StopSignal, IsNotedInPlaceOfWhatTheSignalDidBefore) {
  std::signal(SIGUSR1, count_it);
  {
    const StopSignal stop(SIGUSR1);
    EXPECT_FALSE(stop.came());
    std::raise(SIGUSR1);
    EXPECT_TRUE(stop.came());
    EXPECT_TRUE(stop.came());
    EXPECT_EQ(count, 0);
  }
  std::raise(SIGUSR1);
  EXPECT_EQ(count, 1);
  std::signal(SIGUSR1, SIG_DFL);
}

TEST(StopSignal, OneRanksSignalIsHeardByAllAfterTheSameCollective) {
  // The ranks are threads of one process here; tests/examples has processes.
  const StopSignal stop(SIGUSR2);
  comm::run_ranks(3, [&](comm::Communicator& group) {
    for (int step = 0; step < 5; ++step) {
      EXPECT_EQ(stop.came(&group), step > 2) << step;
      if (group.rank() == 1 && step == 2) std::raise(SIGUSR2);
      group.barrier().wait();
    }
  });
}

TEST(StopSignal, WhatCannotBeCaughtIsRefused) {
  for (const int signal : {0, -1, 10000, SIGKILL}) {
    try {
      const StopSignal stop(signal);
      ADD_FAILURE() << signal;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
  }
}

}  // namespace
}  // namespace lockstep::nn
