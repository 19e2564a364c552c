// `lockstep run`: what its options mean, and what each rank finds in its environment.

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "launcher.h"
#include "lockstep/comm/auth.h"
#include "lockstep/comm/store.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"
#include "nodes.h"
#include "process.h"
#include "run_options.h"

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
    "  -n N               how many ranks on this host (may be more than there are cores)\n"
    "  --log-dir DIR      writes each rank's output to DIR/rank-0.log and so on, too, and what\n"
    "                     `lockstep doctor` reads of a failure to DIR/rank-0.flight\n"
    "  --grace SECONDS    how long the other ranks may go on after one has failed, before\n"
    "                     SIGTERM, and again before SIGKILL (3)\n"
    "  --max-restarts N   starts all ranks again when one has failed, so often (0); the program\n"
    "                     finds the number of the restart in LOCKSTEP_RESTART\n"
    "  --help             prints this\n"
    "\n"
    "On several hosts it is started on each of them, with the same secret in LOCKSTEP_TOKEN:\n"
    "  --nnodes N         how many hosts\n"
    "  --node-rank R      which of them this is, from 0\n"
    "  --rendezvous HOST:PORT  where they meet: an address of host 0 that all reach, and a free\n"
    "                     port there\n"
    "  --hosts A,B,...    instead of all three, and the same on every host: it finds itself in\n"
    "                     the list by its name or address; they meet at the first, port 29400\n"
    "-n may differ between hosts. Ranks are numbered host by host.\n"
    "\n"
    "The status is 0 if all ranks ended with 0, else that of the first that failed, or\n"
    "128 + the number of the signal that ended it; 2 if the command line is wrong; 127 if\n"
    "PROGRAM cannot be executed. Ctrl-C goes to all ranks; a second one kills them.\n";

constexpr int kCannotExecute = 127;  // the shells' status for it

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

// What every rank of this host finds in its environment, and each its place.
std::vector<std::vector<std::string>> environments(const RunOptions& options, const JobStart& start,
                                                   int restart) {
  std::map<std::string, std::string> variables = inherited();
  for (const char* prefix : {"", "LOCKSTEP_"}) {
    variables[concat(prefix, "WORLD_SIZE")] = std::to_string(start.world_size);
    variables[concat(prefix, "LOCAL_WORLD_SIZE")] = std::to_string(options.ranks);
  }
  variables["LOCKSTEP_STORE"] = comm::to_string(start.store);
  variables["LOCKSTEP_STORE_HOSTED"] = "1";
  variables["LOCKSTEP_TOKEN"] = start.token;
  variables["LOCKSTEP_JOB"] = start.job;
  variables["LOCKSTEP_RESTART"] = std::to_string(restart);
  variables["MASTER_ADDR"] = start.store.host;
  variables["MASTER_PORT"] = std::to_string(start.master_port);
  if (!options.log_dir.empty()) variables.emplace("LOCKSTEP_RECORD", options.log_dir);

  std::vector<std::vector<std::string>> out(static_cast<size_t>(options.ranks));
  for (size_t local = 0; local < out.size(); ++local) {
    const std::string rank = std::to_string(start.first_rank + static_cast<int>(local));
    for (const char* prefix : {"", "LOCKSTEP_"}) {
      variables[concat(prefix, "RANK")] = rank;
      variables[concat(prefix, "LOCAL_RANK")] = std::to_string(local);
    }
    for (const auto& [name, value] : variables) out[local].push_back(concat(name, "=", value));
  }
  return out;
}

std::string job_name() {
  const char* named = std::getenv("LOCKSTEP_JOB");
  if (named != nullptr && *named != '\0') return named;
  return concat("run-", ::getpid(), "-", comm::random_token().substr(0, 8));
}

// The store of one start of the job, served by the launcher: its port is certain before any rank
// starts, and it outlives each of them.
struct Served {
  JobStart start;
  std::unique_ptr<comm::StoreServer> server;
};

Served serve(const RunOptions& options) {
  const std::string host = options.nodes > 1 ? options.rendezvous.host : "127.0.0.1";
  const std::string listen = comm::is_loopback(host) ? host : "";
  Served out;
  out.start.world_size = options.ranks;
  out.start.token = comm::random_token();
  out.start.job = job_name();
  out.server = std::make_unique<comm::StoreServer>(
      comm::StoreServer::Options{listen, 0, out.start.token, out.start.job});
  out.start.store = {host, out.server->port()};
  // Programs that are not Lockstep's serve a store of their own at MASTER_PORT.
  out.start.master_port = comm::local_port(comm::listen_tcp(listen, 0, "run"));
  return out;
}

int run_job(const RunOptions& options) {
  const std::string file = find_program(options.program[0]);
  Guard guard;
  const BlockedSignals blocked;  // before the first thread
  std::unique_ptr<Nodes> nodes;
  if (options.nodes > 1) {
    nodes = std::make_unique<Nodes>(
        Place{options.node, options.nodes, options.rendezvous, std::getenv("LOCKSTEP_TOKEN")},
        comm::default_timeout());
  }
  for (int restart = 0;; ++restart) {
    Launcher launcher(guard, blocked);
    Served served;
    if (options.node == 0) served = serve(options);
    JobStart start = served.start;
    if (nodes != nullptr) start = nodes->begin(options.ranks, served.start);
    Job job;
    job.file = file;
    job.arguments = options.program;
    job.environments = environments(options, start, restart);
    job.first_rank = start.first_rank;
    job.log_dir = options.log_dir;
    job.append_log = restart > 0;
    job.grace = std::chrono::milliseconds(std::lround(options.grace_seconds * 1000));
    job.nodes = nodes.get();
    const int status = launcher.run(std::move(job));
    if (status == 0 || launcher.was_interrupted() || restart >= options.max_restarts) {
      return status;
    }
    std::fprintf(stderr, "lockstep: restart %d of %d\n", restart + 1, options.max_restarts);
  }
}

int run(const std::vector<std::string>& arguments) {
  const RunOptions options = parse_run_options(arguments);
  if (options.program.empty()) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  try {
    return run_job(options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return kCannotExecute;
  }
}

}  // namespace

const Command kRunCommand{"run", "starts the ranks of a job", kUsage, run};

}  // namespace lockstep::cli
