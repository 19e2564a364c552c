// `lockstep doctor`: what this machine has, and what the files of a failed job's ranks tell.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "commands.h"
#include "flights.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"
#include "machine.h"

namespace lockstep::cli {
namespace {

using comm::concat;

constexpr const char* kUsage =
    "usage: lockstep doctor\n"
    "       lockstep doctor FILE...\n"
    "       lockstep run -n N ... lockstep doctor\n"
    "\n"
    "Without files: what this machine has for a job, and what would be in its way: cores, memory,\n"
    "GPUs, NCCL, limits, network interfaces, and whether each transport works. As the program of\n"
    "a launcher's ranks it also says which transport each pair of these ranks would use.\n"
    "\n"
    "With files that ranks wrote when a collective failed (rank-0.flight and so on, from the\n"
    "folder that LOCKSTEP_RECORD names; give those of all hosts): compares them and shows the\n"
    "first collective about which the ranks differ.\n"
    "\n"
    "The status is 0 if all is well, 1 if something is wrong or the files differ, 2 if the "
    "command\n"
    "line is wrong.\n";

comm::Flight read_file(const std::string& name) {
  // Far above what a rank writes.
  constexpr std::streamoff kMostBytes = std::streamoff{64} << 20;
  std::ifstream file(name, std::ios::binary | std::ios::ate);
  if (!file) throw Error(ErrorCode::kIo, "doctor", concat("cannot read \"", name, "\""));
  if (file.tellg() > kMostBytes) {
    throw Error(
        ErrorCode::kCorrupt, "doctor",
        concat("\"", name, "\" is no rank's file: it has ", file.tellg() / (1 << 20), " MiB"));
  }
  file.seekg(0);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return comm::read_flight(text, name);
}

int doctor(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (argument.starts_with("-"))
      throw UsageError(concat("there is no option \"", argument, "\""));
  }
  if (arguments.empty()) return describe_machine();
  std::vector<comm::Flight> flights;
  for (const std::string& name : arguments) flights.push_back(read_file(name));
  const Comparison comparison = compare_flights(flights);
  std::fputs(comparison.text.c_str(), stdout);
  return comparison.differ ? 1 : 0;
}

}  // namespace

const Command kDoctorCommand{"doctor", "what this machine has, or why the ranks of a job failed",
                             kUsage, doctor};

}  // namespace lockstep::cli
