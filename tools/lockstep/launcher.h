#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/socket.h"
#include "output.h"
#include "process.h"

namespace lockstep::cli {

struct Job {
  std::string file;                    // what to execute
  std::vector<std::string> arguments;  // with the program's name first
  // Each rank's environment, NAME=value; as many ranks as there are.
  std::vector<std::vector<std::string>> environments;
  std::string log_dir;  // empty: none
  // How long the other ranks may go on after one has failed, and again after SIGTERM.
  std::chrono::milliseconds grace{3000};
};

// Runs the ranks of one job to their end, in one thread with one poll loop.
//
// The first rank that fails (a status other than 0, or a signal) decides: the others have the grace
// to print errors of their own, then get SIGTERM, then SIGKILL. SIGINT, SIGTERM, SIGHUP and SIGQUIT
// go to every rank's process group, a second one as SIGKILL.
class Launcher {
 public:
  // Blocks the signals it handles, for this thread and those it starts later.
  // `guard` is told of each rank.
  explicit Launcher(Guard& guard);

  // Starts the ranks and waits for their end; nothing they started is left. Returns 0, the first
  // failure's status, or 128 + the signal that killed that rank or was sent to this process.
  // Throws kInvalidArgument where the program cannot be executed, kIo where the system refuses
  // something else; then no rank is left either. Once only.
  int run(Job job);

 private:
  struct Rank {
    pid_t pid = -1;
    bool running = false;
    Fd output[3];  // by stream; 1 and 2 are used
    Fd log;
  };

  void start_all();
  void start(int rank);
  void step();
  void read_signals();
  void take_signal(int signal);
  void reap();
  void ended(int rank, int status);
  // Reads what a rank has written; with `all`, to the end of what is there.
  void read_output(int rank, int stream, bool all);
  void close_output(int rank, int stream);
  void escalate();
  void signal_running(int signal);
  std::string running_ranks() const;
  bool any_running() const;
  void flush();

  Job job_;
  Guard& guard_;
  Output output_;
  std::vector<Rank> ranks_;
  Fd signals_;
  sigset_t old_mask_{};

  int status_ = 0;
  bool failed_ = false;
  int interrupted_ = 0;  // the first signal that this process got
  bool reader_gone_ = false;
  comm::Deadline term_at_ = comm::Deadline::max();
  comm::Deadline kill_at_ = comm::Deadline::max();
};

}  // namespace lockstep::cli
