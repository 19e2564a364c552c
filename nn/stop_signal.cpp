#include "lockstep/nn/stop_signal.h"

#include <array>
#include <cerrno>
#include <system_error>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

// By number. A handler may write to nothing else.
std::array<volatile std::sig_atomic_t, NSIG> arrived{};

void note(int signal) { arrived[static_cast<size_t>(signal)] = 1; }

}  // namespace

StopSignal::StopSignal(int signal) : signal_(signal) {
  struct sigaction action {};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // system calls under way go on
  const bool known = signal > 0 && signal < NSIG;
  check(known && ::sigaction(signal, &action, &before_) == 0, "StopSignal",
        [&] { return str_cat("want a signal that can be caught, got ", signal); });
}

StopSignal::~StopSignal() { ::sigaction(signal_, &before_, nullptr); }

bool StopSignal::came(comm::Communicator* group) const {
  int64_t here = arrived[static_cast<size_t>(signal_)];
  if (group != nullptr && group->size() > 1) {
    group->all_reduce(&here, &here, 1, DType::kI64, comm::ReduceOp::kMax).wait();
  }
  return here != 0;
}

}  // namespace lockstep::nn
