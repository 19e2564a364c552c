#pragma once

#include <string>

#include "lockstep/kernels/device.h"

namespace bench {

// Of one step of rank 0, in seconds: a mean over the steps of a timeline. On a CUDA device all but
// the agreement, which ranks reach on their hosts, is what the device's rows show: its training
// waits for a collective, or goes on meanwhile.
struct Communication {
  double step = 0;
  double exposed = 0;    // training waits for other ranks, or runs a collective itself
  double hidden = 0;     // collectives run while training goes on
  double agreement = 0;  // the collective that agrees on which parameters were used
};

// Reads the last `steps` steps of a file that LOCKSTEP_TIMELINE made, on rank 0's device. Throws
// lockstep::Error where it has fewer.
Communication read_timeline(const std::string& path, int steps, lockstep::Device device);

}  // namespace bench
