// A rank that waits leaves the processor to others.

#include <gtest/gtest.h>
#include <time.h>

#include <chrono>
#include <string>
#include <thread>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

double process_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Waiting : public ::testing::TestWithParam<Path> {};

INSTANTIATE_TEST_SUITE_P(Transports, Waiting,
                         ::testing::Values(Path{"thread", ""}, Path{"shm", ""}, Path{"shm", "ring"},
                                           Path{"tcp", ""}, Path{"tcp", "ring"},
                                           Path{"mixed", "ring"}),
                         [](const auto& of) {
                           return of.param.transport + (of.param.algorithm.empty() ? "" : "_ring");
                         });

// 10 ms at first, then 2% of a core: of one second, for each of two ranks that wait for a third.
TEST_P(Waiting, UsesNextToNoProcessorTime) {
  run_ranks(
      3,
      [](Communicator& comm) {
        std::vector<float> data(50001, 1.0f);
        const auto reduce = [&] {
          comm.all_reduce(data.data(), data.data(), 50001, DType::kF32, ReduceOp::kMax).wait();
        };
        reduce();
        const double before = process_cpu_seconds();
        if (comm.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::seconds(1));
          EXPECT_LT(process_cpu_seconds() - before, 2 * (0.010 + 0.02));
        }
        reduce();
      },
      options_of(GetParam()));
}

}  // namespace
}  // namespace lockstep::comm
