#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/socket.h"

namespace lockstep::cli {

// The command line of `lockstep run`.
struct RunOptions {
  int ranks = 0;  // on this host
  int nodes = 1;
  int node = 0;
  comm::Endpoint rendezvous;  // where nodes > 1
  int max_restarts = 0;
  std::string log_dir;
  double grace_seconds = 3;
  std::vector<std::string> program;  // with its arguments; empty: --help was asked for
};

// Throws UsageError.
RunOptions parse_run_options(const std::vector<std::string>& arguments);

}  // namespace lockstep::cli
