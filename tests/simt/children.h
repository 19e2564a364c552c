#pragma once

// Processes that a test starts: the test's own program again, which runs the test up to the place
// where it is told to be a child. A child that was forked could not use CUDA where its parent has,
// and could start no thread under ThreadSanitizer.

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "simt/simt.h"

namespace lockstep {

inline constexpr int kKilled = -1;
inline constexpr int kStopped = -2;
inline constexpr int kNeverBegan = -3;

// A test that starts processes by run_children(). Whatever it does before its last call of that is
// done by the children of that call as well.
class ChildrenTest : public ::testing::Test {
 public:
  static constexpr size_t kPage = 4096;

  // Of the test that runs, in this process.
  static ChildrenTest& current() { return *current_; }

  ChildrenTest() {
    current_ = this;
    if (const char* child = std::getenv("SIMT_CHILD"); child != nullptr) {
      EXPECT_EQ(std::sscanf(child, "%d %d %d", &page_file_, &call_, &rank_), 3);
      earlier_.str(std::getenv("SIMT_CHILD_EARLIER"));
    } else {
      page_file_ = memfd_create("page", 0);  // for children to inherit
      EXPECT_EQ(ftruncate(page_file_, kPage), 0);
    }
    page_ = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, page_file_, 0);
    EXPECT_NE(page_, MAP_FAILED);
  }
  ~ChildrenTest() override {
    munmap(page_, kPage);
    close(page_file_);
    current_ = nullptr;
  }

  // A page that the processes of this test share, zero at first; SharedNumbers are at its end.
  void* page() const { return page_; }
  std::atomic<int>& next_number() {
    const size_t offset = kPage - ++numbers_ * sizeof(std::atomic<int>);
    return *reinterpret_cast<std::atomic<int>*>(static_cast<std::byte*>(page_) + offset);
  }

  // Runs fn as each of n processes, which are given what `text` returns in this one, and returns
  // how each ended: 0, 1 where something that the test expects does not hold, kKilled, kStopped, or
  // kNeverBegan where it did not come to fn.
  std::vector<int> run_children(int n, const std::function<std::string()>& text,
                                const std::function<void(int rank, const std::string& text)>& fn) {
    const int call = calls_++;
    std::vector<int> ends(static_cast<size_t>(n));
    if (call < call_) {
      for (int& end : ends) earlier_ >> end;
      return ends;
    }
    if (call == call_) be_child(fn);
    const std::string given = text();
    std::vector<pid_t> children;
    for (int rank = 0; rank < n; ++rank) children.push_back(start(call, rank, given));
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      int status = -1;
      EXPECT_EQ(waitpid(children[rank], &status, WUNTRACED), children[rank]);
      ends[rank] = WIFSTOPPED(status)    ? kStopped
                   : WIFSIGNALED(status) ? kKilled
                                         : end_of(WEXITSTATUS(status));
    }
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      earlier_ << ends[rank] << " ";
      if (ends[rank] != kStopped) continue;
      kill(children[rank], SIGKILL);
      waitpid(children[rank], nullptr, 0);
    }
    return ends;
  }

 private:
  // What a child ends with that came to its work: a program that ran no test ends with 0.
  static constexpr int kHeld = 42;
  static int end_of(int status) { return status == kHeld ? 0 : status == 0 ? kNeverBegan : status; }

  [[noreturn]] void be_child(const std::function<void(int, const std::string&)>& fn) const {
    alarm(200);
    simt::seed(static_cast<uint64_t>(rank_ + 1));
    try {
      fn(rank_, std::getenv("SIMT_CHILD_TEXT"));
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank_ << ": " << error.what();
    }
    EXPECT_EQ(simt::take_report(), "");
    std::fflush(nullptr);
    _exit(HasFailure() ? 1 : kHeld);
  }

  pid_t start(int call, int rank, const std::string& text) const {
    const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
    std::vector<std::string> arguments = {
        "/proc/self/exe",
        std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name(),
        "--gtest_brief=1"};
    std::vector<std::string> variables = {"SIMT_CHILD=" + std::to_string(page_file_) + " " +
                                              std::to_string(call) + " " + std::to_string(rank),
                                          "SIMT_CHILD_EARLIER=" + earlier_.str(),
                                          "SIMT_CHILD_TEXT=" + text};
    std::vector<char*> argv, envp;
    for (std::string& one : arguments) argv.push_back(one.data());
    for (std::string& one : variables) envp.push_back(one.data());
    for (char** one = environ; *one != nullptr; ++one) envp.push_back(*one);
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    pid_t child = -1;
    const int error = posix_spawn(&child, argv[0], nullptr, nullptr, argv.data(), envp.data());
    if (error != 0) throw std::system_error(error, std::generic_category(), "posix_spawn");
    return child;
  }

  static inline ChildrenTest* current_ = nullptr;
  int page_file_ = -1;
  void* page_ = nullptr;
  size_t numbers_ = 0;
  int calls_ = 0;
  std::stringstream earlier_;  // how the children of earlier calls ended
  // In a child: at which call it comes to be one, and as which.
  int call_ = -1;
  int rank_ = -1;
};

// A number that the processes of a test share; 0 at first.
class SharedNumber {
 public:
  SharedNumber() : value_(ChildrenTest::current().next_number()) {}
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;

  std::atomic<int>& operator*() const { return value_; }
  void await(int value) const {
    while (value_.load() < value) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::atomic<int>& value_;
};

}  // namespace lockstep
