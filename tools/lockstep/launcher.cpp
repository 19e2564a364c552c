#include "launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::cli {
namespace {

using comm::Clock;
using comm::concat;
using comm::Deadline;
using std::chrono::milliseconds;

// What a job may take to stop after SIGTERM or SIGHUP: what schedulers give it too. After Ctrl-C
// there is a person, who can press it again.
constexpr milliseconds kStopTime{30'000};
// How long the last output may take to go out once all ranks have ended.
constexpr milliseconds kFlushTime{10'000};

std::string name_of(int signal) {
  const char* text = ::strsignal(signal);
  return concat("signal ", signal, " (", text != nullptr ? text : "unknown", ")");
}

// How often a launcher whose ranks have ended well asks whether those of other hosts have.
constexpr milliseconds kAskNodes{200};

int prefix_columns(int rank) { return static_cast<int>(concat("[", rank, "] ").size()); }

}  // namespace

BlockedSignals::BlockedSignals() {
  sigemptyset(&handled_);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGCHLD, SIGWINCH}) {
    sigaddset(&handled_, signal);
  }
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&handled_, SIGHUP);  // else nohup's wish
  ::sigprocmask(SIG_BLOCK, &handled_, &before_);
  ::signal(SIGPIPE, SIG_IGN);
}

Launcher::Launcher(Guard& guard, const BlockedSignals& blocked)
    : guard_(guard),
      signals_(::signalfd(-1, &blocked.handled(), SFD_CLOEXEC | SFD_NONBLOCK)),
      old_mask_(blocked.before()) {
  if (!signals_) throw Error(ErrorCode::kIo, "run", concat("signalfd: ", ::strerror(errno)));
}

int Launcher::run(Job job) {
  job_ = std::move(job);
  adopt_orphans();
  start_all();
  while (any_running()) step();
  say_verdict();
  end_children_except(guard_.pid());
  awaits_nodes_ = job_.nodes != nullptr && status() == 0;
  while (awaits_nodes_ && status() == 0 && !job_.nodes->all_done()) step();
  if (interrupted_ != 0) {
    tell_nodes(128 + interrupted_, true, concat("the launcher got ", name_of(interrupted_)));
  }
  flush();
  return status();
}

int Launcher::status() const {
  if (elsewhere_) return elsewhere_->status;
  if (failed_rank_ < 0) return interrupted_ != 0 ? 128 + interrupted_ : 0;
  return WIFEXITED(failed_status_) ? WEXITSTATUS(failed_status_) : 128 + WTERMSIG(failed_status_);
}

void Launcher::start_all() {
  if (!job_.log_dir.empty() && ::mkdir(job_.log_dir.c_str(), 0777) != 0 && errno != EEXIST) {
    throw Error(ErrorCode::kIo, "run",
                concat("cannot make the folder \"", job_.log_dir, "\": ", ::strerror(errno)));
  }
  ranks_.resize(job_.environments.size());
  try {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) start(static_cast<int>(rank));
  } catch (const Error& error) {
    end_children_except(guard_.pid());
    tell_nodes(1, true, error.what());
    throw;
  }
}

void Launcher::start(int number) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  const int world_rank = number_of(static_cast<size_t>(number));
  if (!job_.log_dir.empty()) {
    const std::string file = concat(job_.log_dir, "/rank-", world_rank, ".log");
    const int how = job_.append_log ? O_APPEND : O_TRUNC;
    rank.log = Fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0666));
    if (!rank.log) {
      throw Error(ErrorCode::kIo, "run",
                  concat("cannot write \"", file, "\": ", ::strerror(errno)));
    }
  }
  Channel channels[3];
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    channels[stream] = output_.is_live(world_rank, stream)
                           ? make_terminal(prefix_columns(world_rank))
                           : make_pipe();
    rank.output[stream] = std::move(channels[stream].ours);
  }
  // Rank 0 reads what is piped into the launcher. A terminal is nobody's: the ranks are not its
  // foreground, and would be stopped for reading it.
  Fd null;
  if (world_rank != 0 || ::isatty(STDIN_FILENO) == 1) {
    null = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  Start start;
  start.file = job_.file;
  start.arguments = job_.arguments;
  start.environment = job_.environments[static_cast<size_t>(number)];
  start.in = null ? null.get() : STDIN_FILENO;
  start.out = channels[STDOUT_FILENO].theirs.get();
  start.err = channels[STDERR_FILENO].theirs.get();
  start.signal_mask = old_mask_;
  rank.pid = start_process(start);
  rank.running = true;
  guard_.add(rank.pid);
}

void Launcher::step() {
  std::vector<pollfd> polled{{signals_.get(), POLLIN, 0}, {output_.waiting_fd(), POLLOUT, 0}};
  std::vector<std::pair<int, int>> sources;
  if (!output_.full()) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
        if (!ranks_[rank].output[stream]) continue;
        polled.push_back({ranks_[rank].output[stream].get(), POLLIN, 0});
        sources.emplace_back(static_cast<int>(rank), stream);
      }
    }
  }
  const bool hears = job_.nodes != nullptr && !elsewhere_ && !told_nodes_;
  polled.push_back({hears ? job_.nodes->fd() : -1, POLLIN, 0});
  Deadline next = std::min({verdict_at_, term_at_, kill_at_});
  if (awaits_nodes_) next = std::min(next, comm::deadline_after(kAskNodes));
  const int wait = next == Deadline::max() ? -1 : comm::poll_ms(next);
  if (::poll(polled.data(), polled.size(), wait) < 0) return;
  if (polled[1].revents != 0) output_.write_some();
  if (output_.reader_gone() && !std::exchange(reader_gone_, true)) take_signal(SIGPIPE);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (polled[i + 2].revents != 0) read_output(sources[i].first, sources[i].second, false);
  }
  if (polled[0].revents != 0) read_signals();
  if (polled.back().revents != 0) hear_nodes();
  escalate();
}

void Launcher::hear_nodes() {
  elsewhere_ = job_.nodes->failure();
  if (!elsewhere_) return;
  output_.say(elsewhere_->text);
  // The ranks here are likely to have errors of their own for it, which are worth reading.
  term_at_ = std::min(term_at_, comm::deadline_after(std::max(kSettle, job_.grace)));
}

void Launcher::tell_nodes(int status, bool is_last, const std::string& text) {
  if (job_.nodes == nullptr || elsewhere_ || std::exchange(told_nodes_, true)) return;
  job_.nodes->fail({status, is_last, concat(text, ", on node ", job_.nodes->node())});
}

void Launcher::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGWINCH) {
      for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
        if (ranks_[0].output[stream] && output_.is_live(number_of(0), stream)) {
          copy_window_size(ranks_[0].output[stream], prefix_columns(number_of(0)));
        }
      }
    } else if (signal != SIGCHLD) {
      take_signal(signal);
    }
  }
  reap();  // several children may share one SIGCHLD
}

void Launcher::take_signal(int signal) {
  if (interrupted_ != 0) {
    output_.say("killing the ranks");
    signal_running(SIGKILL);
    return;
  }
  interrupted_ = signal;
  // Nobody reads what the ranks print: they are told to stop, as by SIGPIPE they would have.
  const int passed = signal == SIGPIPE ? SIGTERM : signal;
  signal_running(passed);
  if (signal == SIGINT) {
    output_.say("interrupted; waiting for the ranks to stop (Ctrl-C again kills them)");
  } else {
    output_.say(concat("got ", name_of(signal), "; waiting for the ranks to stop"));
    if (signal != SIGQUIT) kill_at_ = std::min(kill_at_, comm::deadline_after(kStopTime));
  }
}

void Launcher::reap() {
  int status = 0;
  for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].running && ranks_[rank].pid == pid) ended(static_cast<int>(rank), status);
    }
  }
}

void Launcher::ended(int number, int status) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  rank.running = false;
  signal_group(rank.pid, SIGKILL);  // what it had started
  guard_.remove(rank.pid);
  for (const int stream : {STDERR_FILENO, STDOUT_FILENO}) {
    read_output(number, stream, true);
    close_output(number, stream);
  }
  const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (good || interrupted_ != 0 || elsewhere_) return;
  if (failed_rank_ < 0) {
    verdict_at_ = comm::deadline_after(kSettle);
    term_at_ = comm::deadline_after(std::max(kSettle, job_.grace));
  } else if (verdict_at_ == Deadline::max() || WIFSIGNALED(failed_status_) || WIFEXITED(status)) {
    return;
  }
  failed_rank_ = number;
  failed_status_ = status;
}

void Launcher::say_verdict() {
  if (verdict_at_ == Deadline::max()) return;
  verdict_at_ = Deadline::max();
  const int status = failed_status_;
  const std::string text =
      concat("rank ", number_of(static_cast<size_t>(failed_rank_)), " (pid ",
             ranks_[static_cast<size_t>(failed_rank_)].pid, ") ",
             WIFEXITED(status) ? concat("ended with status ", WEXITSTATUS(status))
                               : concat("was killed by ", name_of(WTERMSIG(status))));
  output_.say(text);
  tell_nodes(this->status(), false, text);
}

void Launcher::read_output(int number, int stream, bool all) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  char bytes[16384];
  do {
    if (!rank.output[stream]) return;
    const ssize_t got = ::read(rank.output[stream].get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    // A terminal whose other end has closed says EIO where a pipe says end of file.
    if (got <= 0) return close_output(number, stream);
    const std::string_view text(bytes, static_cast<size_t>(got));
    output_.feed(number_of(static_cast<size_t>(number)), stream, text);
    if (rank.log && ::write(rank.log.get(), text.data(), text.size()) < 0) {
      output_.say(concat("cannot write the log of rank ", number_of(static_cast<size_t>(number)),
                         ": ", ::strerror(errno)));
      rank.log.reset();
    }
  } while (all);
}

void Launcher::close_output(int number, int stream) {
  Fd& output = ranks_[static_cast<size_t>(number)].output[stream];
  if (!output) return;
  output.reset();
  output_.end(number_of(static_cast<size_t>(number)), stream);
}

void Launcher::escalate() {
  const Deadline now = Clock::now();
  if (now >= verdict_at_) say_verdict();
  if (now >= term_at_) {
    term_at_ = Deadline::max();
    if (any_running()) {
      output_.say(concat("stopping ", running_ranks()));
      signal_running(SIGTERM);
      kill_at_ = std::min(kill_at_, comm::deadline_after(job_.grace));
    }
  }
  if (now >= kill_at_) {
    kill_at_ = Deadline::max();
    if (any_running()) {
      output_.say(concat("killing ", running_ranks(), ", which did not stop"));
      signal_running(SIGKILL);
    }
  }
}

void Launcher::signal_running(int signal) {
  for (const Rank& rank : ranks_) {
    if (!rank.running) continue;
    signal_group(rank.pid, signal);
    // One that is stopped could not even act on SIGTERM.
    if (signal != SIGKILL) signal_group(rank.pid, SIGCONT);
  }
}

std::string Launcher::running_ranks() const {
  std::vector<int> running;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].running) running.push_back(number_of(rank));
  }
  return comm::rank_list(running);
}

bool Launcher::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; });
}

void Launcher::flush() {
  const Deadline deadline = comm::deadline_after(kFlushTime);
  while (output_.waiting_fd() >= 0 && Clock::now() < deadline) {
    pollfd polled[] = {{output_.waiting_fd(), POLLOUT, 0}, {signals_.get(), POLLIN, 0}};
    if (::poll(polled, 2, comm::poll_ms(deadline)) < 0) continue;
    if (polled[0].revents != 0) output_.write_some();
    if (polled[1].revents == 0) continue;
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo != SIGCHLD && info.ssi_signo != SIGWINCH) return;  // Ctrl-C while it waits
    }
  }
}

}  // namespace lockstep::cli
