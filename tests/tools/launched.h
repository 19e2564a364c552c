#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/socket.h"

namespace lockstep {

// The program `lockstep` under test, started with some arguments and read from outside. All that
// it starts carries a mark in its environment, by which what is left over is found.
class Launched {
 public:
  struct Setting {
    bool terminal = false;   // standard output is one
    std::string input = {};  // piped into the launcher; at most a pipe's capacity
    std::vector<std::pair<std::string, std::string>> environment = {};
  };

  explicit Launched(std::vector<std::string> arguments)
      : Launched(std::move(arguments), Setting{}) {}
  Launched(std::vector<std::string> arguments, const Setting& setting)
      : mark_("LOCKSTEP_TEST_MARK=" + std::to_string(::getpid()) + "." +
              std::to_string(started_++)) {
    comm::Fd theirs[3];
    if (setting.terminal) {
      out_ = comm::Fd(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
      EXPECT_TRUE(out_);
      ::grantpt(out_.get());
      ::unlockpt(out_.get());
      char name[128];
      ::ptsname_r(out_.get(), name, sizeof name);
      theirs[1] = comm::Fd(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
      termios raw{};
      ::tcgetattr(theirs[1].get(), &raw);
      raw.c_oflag &= ~static_cast<tcflag_t>(OPOST);
      ::tcsetattr(theirs[1].get(), TCSANOW, &raw);
    } else {
      open_pipe(out_, theirs[1]);
    }
    open_pipe(err_, theirs[2]);
    {
      comm::Fd input;
      open_pipe(theirs[0], input);
      EXPECT_EQ(::write(input.get(), setting.input.data(), setting.input.size()),
                static_cast<ssize_t>(setting.input.size()));
    }
    arguments.insert(arguments.begin(), LOCKSTEP_CLI);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    for (const auto& [variable, value] : setting.environment) {
      ::setenv(variable.c_str(), value.c_str(), 1);
    }
    ::putenv(mark_.data());
    ::dup2(theirs[0].get(), 0);
    ::dup2(theirs[1].get(), 1);
    ::dup2(theirs[2].get(), 2);
    ::execv(argv[0], argv.data());
    ::_exit(99);
  }

  ~Launched() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  // Reads until both streams together have shown `text` so often.
  void wait_for(const std::string& text, int times = 1) {
    while (count(out, text) + count(err, text) < times) {
      if (!read_some()) {
        ADD_FAILURE() << "no \"" << text << "\" in:\n" << out << err;
        return;
      }
    }
  }

  void signal(int number) const { ::kill(pid_, number); }
  void close_output() { out_.reset(); }
  pid_t pid() const { return pid_; }

  // Reads to the end and returns the exit status, or 1000 + the signal that ended it.
  int finish() {
    while (read_some()) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  // How many processes still carry the mark.
  int left_over() const {
    int left = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "environ", std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      left += text.find(mark_ + '\0') != text.npos ? 1 : 0;
    }
    return left;
  }

  std::string out, err;  // what has been read

 private:
  static int count(const std::string& where, const std::string& text) {
    int times = 0;
    for (size_t at = 0; (at = where.find(text, at)) != where.npos; at += text.size()) ++times;
    return times;
  }

  static void open_pipe(comm::Fd& read_end, comm::Fd& write_end) {
    int fds[2];
    ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    read_end = comm::Fd(fds[0]);
    write_end = comm::Fd(fds[1]);
  }

  // False at the end of both streams, or after a minute of silence.
  bool read_some() {
    pollfd polled[] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};
    if (!out_ && !err_) return false;
    if (::poll(polled, 2, 60'000) <= 0) {
      ADD_FAILURE() << "the launcher says nothing any more";
      return false;
    }
    for (int i = 0; i < 2; ++i) {
      if (polled[i].revents == 0) continue;
      char bytes[4096];
      const ssize_t got = ::read(polled[i].fd, bytes, sizeof bytes);
      if (got > 0) {
        (i == 0 ? out : err).append(bytes, static_cast<size_t>(got));
      } else {
        (i == 0 ? out_ : err_).reset();
      }
    }
    return true;
  }

  static inline int started_ = 0;
  std::string mark_;
  pid_t pid_ = -1;
  comm::Fd out_, err_;
};

// Without their ends.
inline std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) out.push_back(line);
  return out;
}

}  // namespace lockstep
