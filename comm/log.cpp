#include "lockstep/comm/log.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {

bool logs_debug() {
  const char* value = std::getenv("LOCKSTEP_LOG");
  const std::string_view text = value != nullptr ? value : "";
  check(text.empty() || text == "off" || text == "debug", "connect",
        [&] { return concat("LOCKSTEP_LOG wants debug or off, got \"", text, "\""); });
  return text == "debug";
}

void log_line(int rank, std::string_view text) {
  // One write, so that ranks' lines do not mix.
  const std::string line = concat("lockstep: rank ", rank, ": ", text, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace lockstep::comm
