#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/socket.h"
#include "nodes.h"
#include "output.h"
#include "process.h"

namespace lockstep::cli {

struct Job {
  std::string file;                    // what to execute
  std::vector<std::string> arguments;  // with the program's name first
  // Each rank's environment, NAME=value; as many ranks as this host has.
  std::vector<std::vector<std::string>> environments;
  int first_rank = 0;       // the world's number of the first of them
  std::string log_dir;      // empty: none
  bool append_log = false;  // for a restart
  // How long the other ranks may go on after one has failed, and again after SIGTERM.
  std::chrono::milliseconds grace{3000};
  Nodes* nodes = nullptr;  // the launchers of other hosts, who have begun this start too
};

// The signals that launchers handle, blocked for good in the calling thread and those that it
// starts later: a thread that does not block one could swallow it.
class BlockedSignals {
 public:
  BlockedSignals();
  const sigset_t& handled() const { return handled_; }
  // The mask that this process had, and its ranks have.
  const sigset_t& before() const { return before_; }

 private:
  sigset_t handled_{};
  sigset_t before_{};
};

// Runs the ranks of one job on this host to their end, in one thread with one poll loop.
//
// The first rank that fails (a status other than 0, or a signal) decides: the others have the grace
// to print errors of their own, then get SIGTERM, then SIGKILL. Of ranks that fail within kSettle
// one that a signal killed is named before one that ended by itself: the system closes a process's
// sockets before it reports its end, so another rank's end for the loss of it may be heard of
// first. SIGINT, SIGTERM, SIGHUP and SIGQUIT
// go to every rank's process group, a second one as SIGKILL.
class Launcher {
 public:
  // `guard` is told of each rank.
  Launcher(Guard& guard, const BlockedSignals& blocked);

  // Starts the ranks and waits for their end; nothing they started is left. Returns 0, the first
  // failure's status, or 128 + the signal that killed that rank or was sent to this process. Waits
  // for the ranks of other hosts, too; where one of those fails, its status counts.
  // Throws kInvalidArgument where the program cannot be executed, kIo where the system refuses
  // something else; then no rank is left either. Once only.
  int run(Job job);
  // Whether a signal was sent to this process, or nobody reads its output any more.
  // Here or on another host: there is no sense in another start.
  bool was_interrupted() const { return interrupted_ != 0 || (elsewhere_ && elsewhere_->is_last); }

 private:
  static constexpr std::chrono::milliseconds kSettle{200};

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
  void say_verdict();
  void hear_nodes();
  void tell_nodes(int status, bool is_last, const std::string& text);
  int status() const;
  int number_of(size_t local) const { return job_.first_rank + static_cast<int>(local); }
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
  const sigset_t old_mask_;

  int failed_rank_ = -1;
  int failed_status_ = 0;  // as waitpid gave it
  comm::Deadline verdict_at_ = comm::Deadline::max();
  std::optional<NodeFailure> elsewhere_;  // the failure of another host came first
  bool told_nodes_ = false;
  bool awaits_nodes_ = false;  // the ranks of this host have ended well
  int interrupted_ = 0;        // the first signal that this process got
  bool reader_gone_ = false;
  comm::Deadline term_at_ = comm::Deadline::max();
  comm::Deadline kill_at_ = comm::Deadline::max();
};

}  // namespace lockstep::cli
