#include "job.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

#include "lockstep/comm/socket.h"
#include "lockstep/comm/store.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

extern char** environ;

namespace bench {
namespace {

using lockstep::Error;
using lockstep::ErrorCode;
using lockstep::str_cat;
using lockstep::comm::Fd;

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::kIo, "run_job", str_cat(what, ": ", std::strerror(errno)));
}

std::string fresh_token() {
  std::random_device device;
  std::string token;
  for (int i = 0; i < 8; ++i) token += str_cat(absl::Hex(device(), absl::kZeroPad8));
  return token;
}

// Our environment with `changes` (NAME=value) in place of what has their names.
std::vector<std::string> changed_environment(const std::vector<std::string>& changes) {
  std::vector<std::string> environment = changes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view name(*entry, std::strcspn(*entry, "="));
    bool replaced = false;
    for (const std::string& change : changes)
      replaced |= change.substr(0, change.find('=')) == name;
    if (!replaced) environment.emplace_back(*entry);
  }
  return environment;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// The processes of one job. Those that are left when it goes are killed.
class Job {
 public:
  ~Job() {
    for (const Process& process : processes_) {
      if (process.pid > 0) kill(process.pid, SIGKILL);
    }
    for (Process& process : processes_) reap(process);
  }

  void start(std::vector<std::string> command, std::vector<std::string> environment) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail("no pipe");
    Fd reading(ends[0]), writing(ends[1]);
    std::vector<char*> arguments = pointers(command);
    std::vector<char*> variables = pointers(environment);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) fail("no process");
    if (pid == 0) {  // only async-signal-safe calls from here on
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent || dup2(writing.get(), STDOUT_FILENO) < 0) _exit(127);
      execve(arguments[0], arguments.data(), variables.data());
      _exit(127);
    }
    processes_.push_back({.pid = pid, .output = std::move(reading), .text = ""});
  }

  std::vector<std::string> finish() {
    while (read_some()) {
    }
    std::vector<std::string> texts;
    for (Process& process : processes_) texts.push_back(std::move(process.text));
    return texts;
  }

 private:
  struct Process {
    pid_t pid = -1;
    Fd output;
    std::string text;
  };

  // Returns false once every process has ended well.
  bool read_some() {
    std::vector<pollfd> polls;
    for (const Process& process : processes_) {
      polls.push_back({.fd = process.output.get(), .events = POLLIN, .revents = 0});
    }
    if (poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) fail("poll");
    bool running = false;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      if (processes_[rank].pid > 0 && polls[rank].revents != 0) read_from(rank);
      running |= processes_[rank].pid > 0;
    }
    return running;
  }

  void read_from(size_t rank) {
    std::array<char, 4096> buffer;
    Process& process = processes_[rank];
    const ssize_t count = read(process.output.get(), buffer.data(), buffer.size());
    if (count > 0) process.text.append(buffer.data(), static_cast<size_t>(count));
    if (count > 0 || (count < 0 && errno == EINTR)) return;
    const int status = reap(process);
    if (status != 0) {
      const bool killed = WIFSIGNALED(status);
      throw Error(ErrorCode::kPeerLost, "run_job",
                  str_cat("rank ", rank, " ended with ", killed ? "signal " : "status ",
                          killed ? WTERMSIG(status) : WEXITSTATUS(status)));
    }
  }

  // A process that was reaped has no pid, and a descriptor that poll() passes over.
  static int reap(Process& process) {
    int status = 0;
    if (process.pid > 0) {
      while (waitpid(process.pid, &status, 0) < 0 && errno == EINTR) {
      }
    }
    process.pid = -1;
    process.output = Fd();
    return status;
  }

  std::vector<Process> processes_;
};

}  // namespace

std::vector<std::string> run_job(int ranks, const std::vector<std::string>& command,
                                 const std::vector<std::string>& environment) {
  const std::string token = fresh_token();
  const lockstep::comm::StoreServer store({.host = "127.0.0.1", .token = token, .job = "bench"});
  // A program of other people's that follows torchrun brings a store of its own, for which it
  // needs a port: one that was free a moment ago is as good as it gets there.
  int foreign_port = 0;
  {
    const lockstep::comm::StoreServer probe({.host = "127.0.0.1", .token = token, .job = "probe"});
    foreign_port = probe.port();
  }
  Job job;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> changes = {
        str_cat("LOCKSTEP_RANK=", rank),
        str_cat("LOCKSTEP_WORLD_SIZE=", ranks),
        str_cat("LOCKSTEP_LOCAL_RANK=", rank),
        str_cat("LOCKSTEP_LOCAL_WORLD_SIZE=", ranks),
        str_cat("LOCKSTEP_STORE=127.0.0.1:", store.port()),
        "LOCKSTEP_STORE_HOSTED=1",
        str_cat("LOCKSTEP_TOKEN=", token),
        "LOCKSTEP_JOB=bench",
        "OMP_NUM_THREADS=1",
        str_cat("RANK=", rank),
        str_cat("WORLD_SIZE=", ranks),
        "MASTER_ADDR=127.0.0.1",
        str_cat("MASTER_PORT=", foreign_port),
    };
    changes.insert(changes.end(), environment.begin(), environment.end());
    job.start(command, changed_environment(changes));
  }
  return job.finish();
}

std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

}  // namespace bench
