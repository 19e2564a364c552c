#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "lockstep/comm/socket.h"

namespace lockstep::cli {

using comm::Fd;

// Both ends of something that a rank writes to and the launcher reads from. The launcher's end is
// non-blocking, and both are closed on exec.
struct Channel {
  Fd ours, theirs;
};
Channel make_pipe();
// A terminal as wide as ours less `prefix` columns, which passes bytes on as they are.
Channel make_terminal(int prefix);
// Gives the terminal behind `ours` the size that our own has now.
void copy_window_size(const Fd& ours, int prefix);

// The file that execve should be given for `program`: itself if it has a slash, else the first in
// PATH. Throws Error(kInvalidArgument) where there is none that can be executed.
std::string find_program(const std::string& program);

struct Start {
  std::string file;
  std::vector<std::string> arguments;    // with the program's name first
  std::vector<std::string> environment;  // NAME=value
  int in = -1, out = -1, err = -1;
  sigset_t signal_mask{};
};

// Starts a process in a group of its own, which the system kills when the calling thread ends.
// Returns once the program runs. Throws kInvalidArgument where it cannot be executed, kIo where
// the system has no room for another process.
pid_t start_process(const Start& start);

// Sends a signal to a process's whole group, if there still is one.
void signal_group(pid_t pid, int signal);

// A process that outlives the launcher only for as long as it takes to kill the groups of the ranks
// that a killed launcher left behind. (The system kills the ranks themselves; what they had started
// has nobody but this.)
class Guard {
 public:
  // REQUIRES: this process has one thread.
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  pid_t pid() const { return pid_; }
  void add(pid_t group) { tell(group); }
  void remove(pid_t group) { tell(-group); }

 private:
  void tell(pid_t message);
  pid_t pid_ = -1;
  Fd pipe_;
};

// Makes processes whose parents end children of this one, so that none is lost sight of.
void adopt_orphans();
// Kills and reaps every child of this process but `spared`, and theirs in turn.
void end_children_except(pid_t spared);

}  // namespace lockstep::cli
