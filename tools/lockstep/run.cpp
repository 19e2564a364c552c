// `lockstep run`: what its options mean, and what each rank finds in its environment.

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "launcher.h"
#include "lockstep/comm/auth.h"
#include "lockstep/comm/store.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"
#include "process.h"

namespace lockstep::cli {
namespace {

using comm::concat;

constexpr const char* kUsage =
    "usage: lockstep run -n N [OPTIONS] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Starts N ranks of PROGRAM on this machine and ends when all have ended. Each line they\n"
    "print has its rank before it. When one fails, it says which and why and stops the others.\n"
    "\n"
    "options:\n"
    "  -n N               how many ranks (may be more than there are cores)\n"
    "  --log-dir DIR      writes each rank's output to DIR/rank-0.log and so on, too\n"
    "  --grace SECONDS    how long the other ranks may go on after one has failed, before\n"
    "                     SIGTERM, and again before SIGKILL (3)\n"
    "  --help             prints this\n"
    "\n"
    "The status is 0 if all ranks ended with 0, else that of the first that failed, or\n"
    "128 + the number of the signal that ended it; 2 if the command line is wrong; 127 if\n"
    "PROGRAM cannot be executed. Ctrl-C goes to all ranks; a second one kills them.\n";

constexpr int kMaxRanks = 1024;
constexpr int kCannotExecute = 127;  // the shells' status for it

struct Options {
  int ranks = 0;
  std::string log_dir;
  double grace_seconds = 3;
  std::vector<std::string> program;  // with its arguments; empty: --help was asked for
};

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  size_t i = 0;
  const auto value = [&](const std::string& option) -> const std::string& {
    if (i + 1 >= arguments.size()) throw UsageError(concat(option, " wants a value"));
    return arguments[++i];
  };
  for (; i < arguments.size(); ++i) {
    const std::string& option = arguments[i];
    if (option == "--") {
      ++i;
      break;
    }
    if (!option.starts_with("-")) break;
    if (option == "--help" || option == "-h") return {};
    if (option == "-n") {
      const std::string& text = value(option);
      if (!comm::parse_number(text, options.ranks) || options.ranks < 1 ||
          options.ranks > kMaxRanks) {
        throw UsageError(
            concat("-n wants a number of ranks from 1 to ", kMaxRanks, ", got \"", text, "\""));
      }
    } else if (option == "--log-dir") {
      options.log_dir = value(option);
    } else if (option == "--grace") {
      const std::string& text = value(option);
      if (!comm::parse_number(text, options.grace_seconds) || !(options.grace_seconds >= 0) ||
          options.grace_seconds > 1e6) {
        throw UsageError(concat("--grace wants seconds, 0 to 1000000, got \"", text, "\""));
      }
    } else {
      throw UsageError(concat("there is no option \"", option, "\""));
    }
  }
  options.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  if (options.ranks == 0) throw UsageError("say how many ranks to start: -n 2");
  if (options.program.empty()) throw UsageError("say which program to start");
  return options;
}

// This process's environment, without what belongs to a launcher above this one.
std::map<std::string, std::string> inherited() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  variables.erase("TORCHELASTIC_USE_AGENT_STORE");
  return variables;
}

std::vector<std::vector<std::string>> environments(const Options& options, int store_port,
                                                   const std::string& token,
                                                   const std::string& job) {
  // Programs that are not Lockstep's serve a store of their own at MASTER_PORT.
  const std::string master_port =
      std::to_string(comm::local_port(comm::listen_tcp("127.0.0.1", 0, "run")));
  std::map<std::string, std::string> variables = inherited();
  const std::string size = std::to_string(options.ranks);
  for (const char* prefix : {"", "LOCKSTEP_"}) {
    variables[concat(prefix, "WORLD_SIZE")] = size;
    variables[concat(prefix, "LOCAL_WORLD_SIZE")] = size;
  }
  variables["LOCKSTEP_STORE"] = concat("127.0.0.1:", store_port);
  variables["LOCKSTEP_STORE_HOSTED"] = "1";
  variables["LOCKSTEP_TOKEN"] = token;
  variables["LOCKSTEP_JOB"] = job;
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = master_port;

  std::vector<std::vector<std::string>> out(static_cast<size_t>(options.ranks));
  for (size_t rank = 0; rank < out.size(); ++rank) {
    for (const char* name : {"RANK", "LOCAL_RANK", "LOCKSTEP_RANK", "LOCKSTEP_LOCAL_RANK"}) {
      variables[name] = std::to_string(rank);
    }
    for (const auto& [name, value] : variables) out[rank].push_back(concat(name, "=", value));
  }
  return out;
}

std::string job_name() {
  const char* named = std::getenv("LOCKSTEP_JOB");
  if (named != nullptr && *named != '\0') return named;
  return concat("run-", ::getpid(), "-", comm::random_token().substr(0, 8));
}

int run(const std::vector<std::string>& arguments) {
  const Options options = parse(arguments);
  if (options.program.empty()) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  Job job;
  job.arguments = options.program;
  job.log_dir = options.log_dir;
  job.grace = std::chrono::milliseconds(std::lround(options.grace_seconds * 1000));
  try {
    job.file = find_program(options.program[0]);
    Guard guard;
    Launcher launcher(guard);
    // The launcher serves the store: its port is certain before any rank starts, and it outlives
    // each of them.
    comm::StoreServer::Options store{"127.0.0.1", 0, comm::random_token(), job_name()};
    const comm::StoreServer server(store);
    job.environments = environments(options, server.port(), store.token, store.job);
    return launcher.run(std::move(job));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return kCannotExecute;
  }
}

}  // namespace

const Command kRunCommand{"run", "starts the ranks of a job on this machine", kUsage, run};

}  // namespace lockstep::cli
