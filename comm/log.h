#pragma once

#include <string_view>

namespace lockstep::comm {

// Whether LOCKSTEP_LOG is "debug": then a group tells on standard error how its ranks reach each
// other and which algorithm each size takes, and why. Throws kInvalidArgument where it is something
// else than "debug", "off" or nothing.
bool logs_debug();

// A line of its own: "lockstep: rank 0: text".
void log_line(int rank, std::string_view text);

}  // namespace lockstep::comm
