#pragma once

#include <string>

namespace bench {

// Of one step of rank 0, in seconds: a mean over the steps of a timeline.
struct Communication {
  double step = 0;
  double exposed = 0;    // training waits for other ranks, or runs a collective itself
  double hidden = 0;     // collectives run while training goes on
  double agreement = 0;  // the collective that agrees on which parameters were used
};

// Reads the last `steps` steps of a file that LOCKSTEP_TIMELINE made. Throws lockstep::Error where
// it has fewer.
Communication read_timeline(const std::string& path, int steps);

}  // namespace bench
