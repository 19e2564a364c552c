// A rank for the tests of launchers and of `lockstep doctor`: joins its group, and behaves as its
// argument says.
//
//   reduce     sums over the ranks and prints what it found
//   disagree   rank 1 asks for a barrier where the others ask for a sum, in collective 8
//   absent     rank 1 does not come to collective 8
//   fail-once  rank 1 ends with status 5 unless the launcher has started it again

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/error.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  const char* what = argc == 2 ? argv[1] : "";
  const auto is = [&](const char* name) { return std::strcmp(what, name) == 0; };
  int64_t of_rank_1 = ::getpid();
  try {
    const auto group = comm::init();
    if (is("fail-once")) group->broadcast(&of_rank_1, 1, DType::kI64, 1).wait();
    std::vector<float> data(1009);
    const auto sum = [&] {
      for (size_t i = 0; i < data.size(); ++i) {
        data[i] = static_cast<float>((group->rank() + 1) * static_cast<int>(i % 7 + 1));
      }
      group
          ->all_reduce(data.data(), data.data(), static_cast<int64_t>(data.size()), DType::kF32,
                       comm::ReduceOp::kSum)
          .wait();
    };
    for (int i = 0; i < 7; ++i) sum();
    const char* restart = std::getenv("LOCKSTEP_RESTART");
    if (is("fail-once") && group->rank() == 1 && std::strcmp(restart, "0") == 0) return 5;
    if (is("disagree") && group->rank() == 1) group->barrier().wait();
    if (is("absent") && group->rank() == 1) {
      for (;;) ::pause();
    }
    sum();
    std::printf("rank %d of %d: sum %g over %s\n", group->rank(), group->size(), data[1008],
                group->transport().c_str());
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    // The launcher is to hear of rank 1 first: until it has, there is such a process.
    const auto pid = static_cast<pid_t>(of_rank_1);
    while (is("fail-once") && pid != ::getpid() && ::kill(pid, 0) == 0) ::usleep(1000);
    return 1;
  }
}
