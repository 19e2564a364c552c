#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/flight_file.h"

namespace lockstep::cli {

// What the files of a job's ranks tell together.
struct Comparison {
  std::string text;     // for people
  bool differ = false;  // whether a difference was found
};

// Compares what each rank recorded, group by group, and finds the first collective about which
// they differ: who asked for something else, who never asked, and who did not finish.
// REQUIRES: at least one flight.
Comparison compare_flights(const std::vector<comm::Flight>& flights);

}  // namespace lockstep::cli
