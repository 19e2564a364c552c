#include "process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::cli {
namespace {

using comm::concat;

[[noreturn]] void throw_errno(std::string_view what) {
  throw Error(ErrorCode::kIo, "run", concat(what, ": ", std::strerror(errno)));
}

void make_nonblocking(const Fd& fd) {
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& string : strings) out.push_back(const_cast<char*>(string.c_str()));
  out.push_back(nullptr);
  return out;
}

// The new process's part of start_process: between fork and exec only calls that are safe in a
// copy of a process with threads. Returns the errno of what failed.
int become(const Start& start, pid_t parent, char* const* arguments, char* const* environment) {
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  if (::getppid() != parent) ::_exit(127);  // it ended before that took hold
  if (::dup2(start.in, STDIN_FILENO) < 0) return errno;
  if (::dup2(start.out, STDOUT_FILENO) < 0) return errno;
  if (::dup2(start.err, STDERR_FILENO) < 0) return errno;
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &start.signal_mask, nullptr);
  ::execve(start.file.c_str(), arguments, environment);
  return errno;
}

bool is_executable(const std::string& file) {
  struct stat info {};
  return ::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(file.c_str(), X_OK) == 0;
}

}  // namespace

Channel make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw_errno("cannot make a pipe for a rank's output");
  Channel channel{Fd(fds[0]), Fd(fds[1])};
  make_nonblocking(channel.ours);
  return channel;
}

Channel make_terminal(int prefix) {
  constexpr const char* kWhat = "cannot make a terminal for rank 0";
  Channel channel{Fd(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)), Fd()};
  char name[128];
  if (!channel.ours || ::grantpt(channel.ours.get()) != 0 || ::unlockpt(channel.ours.get()) != 0 ||
      ::ptsname_r(channel.ours.get(), name, sizeof name) != 0) {
    throw_errno(kWhat);
  }
  channel.theirs = Fd(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!channel.theirs) throw_errno(kWhat);
  termios settings{};
  ::tcgetattr(channel.theirs.get(), &settings);
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  ::tcsetattr(channel.theirs.get(), TCSANOW, &settings);
  copy_window_size(channel.ours, prefix);
  make_nonblocking(channel.ours);
  return channel;
}

void copy_window_size(const Fd& ours, int prefix) {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ||
                     ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0;
  if (!known || size.ws_col <= prefix) return;
  size.ws_col = static_cast<unsigned short>(size.ws_col - prefix);
  ::ioctl(ours.get(), TIOCSWINSZ, &size);
}

std::string find_program(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    if (is_executable(program)) return program;
    struct stat info {};
    const bool there = ::stat(program.c_str(), &info) == 0;
    throw Error(ErrorCode::kInvalidArgument, "run",
                concat("cannot execute \"", program, "\": ",
                       there ? "it is not a file that you may execute" : "there is no such file"));
  }
  const char* path = std::getenv("PATH");
  std::string_view left = path != nullptr ? path : "/usr/bin:/bin";
  while (!program.empty()) {
    const size_t end = left.find(':');
    const std::string_view folder = left.substr(0, end);
    std::string file = concat(folder.empty() ? "." : folder, "/", program);
    if (is_executable(file)) return file;
    if (end == left.npos) break;
    left.remove_prefix(end + 1);
  }
  throw Error(ErrorCode::kInvalidArgument, "run",
              concat("cannot find the program \"", program,
                     "\" in PATH; a program of this folder "
                     "is called ./",
                     program));
}

pid_t start_process(const Start& start) {
  const std::vector<char*> arguments = pointers(start.arguments);
  const std::vector<char*> environment = pointers(start.environment);
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw_errno("cannot make a pipe");
  const Fd status_read(fds[0]);
  Fd status_write(fds[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno("cannot start a process");
  if (pid == 0) {
    const int error = become(start, parent, arguments.data(), environment.data());
    if (::write(status_write.get(), &error, sizeof error) < 0) ::_exit(126);
    ::_exit(127);
  }
  ::setpgid(pid, pid);  // by both, since either may be first to need it
  status_write.reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(status_read.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof error) return pid;  // exec closed the pipe
  ::waitpid(pid, nullptr, 0);
  throw Error(ErrorCode::kInvalidArgument, "run",
              concat("cannot execute \"", start.file, "\": ", std::strerror(error),
                     error == ENOEXEC ? " (has a script no first line such as #!/bin/sh?)" : ""));
}

void signal_group(pid_t pid, int signal) { ::kill(-pid, signal); }

Guard::Guard() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw_errno("cannot make a pipe");
  const Fd read_end(fds[0]);
  pipe_ = Fd(fds[1]);
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("cannot start a process");
  if (pid_ > 0) return;

  // The guard. It is out of reach of the terminal's signals, and lives until the pipe closes.
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "lockstep-guard");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_IGN);
  pipe_.reset();
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) ::dup2(null, fd);
  std::set<pid_t> groups;
  pid_t message = 0;
  while (true) {
    const ssize_t got = ::read(read_end.get(), &message, sizeof message);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof message) break;
    if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  for (const pid_t group : groups) signal_group(group, SIGKILL);
  ::_exit(0);
}

Guard::~Guard() {
  pipe_.reset();
  ::waitpid(pid_, nullptr, 0);
}

void Guard::tell(pid_t message) {
  // Without a guard (somebody killed it) the job goes on all the same.
  while (::write(pipe_.get(), &message, sizeof message) < 0 && errno == EINTR) {
  }
}

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

void end_children_except(pid_t spared) {
  const std::string list = concat("/proc/self/task/", ::getpid(), "/children");
  while (true) {
    std::vector<pid_t> children;
    std::ifstream file(list);
    for (pid_t child; file >> child;) {
      if (child != spared) children.push_back(child);
    }
    if (children.empty()) return;
    for (const pid_t child : children) ::kill(child, SIGKILL);
    // What these leave behind becomes ours in turn, and is seen in the next round.
    for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  }
}

}  // namespace lockstep::cli
