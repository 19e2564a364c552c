#pragma once

#include <csignal>

#include "lockstep/comm/communicator.h"

namespace lockstep::nn {

// Lets a run end well when its machine is taken away: schedulers send SIGTERM some time before.
//
//   StopSignal stop;
//   for (…) {
//     …train a step…
//     if (stop.came(group.get())) {
//       save_checkpoint("out", step, state, {.group = group.get()});
//       break;
//     }
//   }
//
// While it lives the signal does nothing else in this process, and what it did before is restored
// at the end. Objects for one signal are destroyed in the reverse order of their making.
class StopSignal {
 public:
  // Throws Error(kInvalidArgument) for a number that is no signal or cannot be caught.
  explicit StopSignal(int signal = SIGTERM);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Collective over `group` (null: this process alone): whether any rank's process has had the
  // signal since an object for it was first made. The same on every rank, so that all stop after
  // the same step. It costs an all_reduce of one number.
  bool came(comm::Communicator* group = nullptr) const;

 private:
  int signal_;
  struct sigaction before_ {};
};

}  // namespace lockstep::nn
