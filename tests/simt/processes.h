#pragma once

// Ranks that are processes, for tests of collectives over device memory.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "../comm/collective_cases.h"
#include "lockstep/comm/communicator.h"
#include "simt/simt.h"

namespace lockstep::comm {

inline constexpr int kKilled = -1;
inline constexpr int kStopped = -2;

// Under ThreadSanitizer each of these wants a process of its own, as it has under ctest: it counts
// the emulator's fibers as threads, and lets the child of a process that has had some start none.
class ProcessesTest : public ::testing::Test {};

// A number that processes share, made before they are.
class SharedNumber {
 public:
  SharedNumber()
      : value_(new (mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<int>(0)) {}
  ~SharedNumber() { munmap(value_, sizeof *value_); }
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;

  std::atomic<int>& operator*() const { return *value_; }
  void await(int value) const {
    while (value_->load() < value) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::atomic<int>* value_;
};

using Connect = std::function<std::shared_ptr<Communicator>(const Options&)>;

// Runs fn as each rank of n processes, in this one's children, which may join with `connect`, and
// returns how each ended: 0, 1 where a test of it failed, kKilled, or kStopped.
inline std::vector<int> run_joining(
    int n, const std::function<void(int rank, const Connect& connect)>& fn) {
  int to_children[2];
  EXPECT_EQ(pipe(to_children), 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < n; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(200);
      try {
        World world{rank, n, rank, n, "127.0.0.1", 0, true, "token", ""};
        if (read(to_children[0], &world.store_port, sizeof world.store_port) !=
            sizeof world.store_port) {
          _exit(2);
        }
        simt::seed(static_cast<uint64_t>(rank + 1));
        fn(rank, [&](const Options& options) {
          return connect(world, Store::connect(world, options.timeout), options);
        });
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
      EXPECT_EQ(simt::take_report(), "");
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  StoreServer server({"127.0.0.1", 0, "token", ""});
  const int port = server.port();
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_EQ(write(to_children[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, WUNTRACED), child);
    ends.push_back(WIFSTOPPED(status)    ? kStopped
                   : WIFSIGNALED(status) ? kKilled
                                         : WEXITSTATUS(status));
  }
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    if (ends[rank] != kStopped) continue;
    kill(children[rank], SIGKILL);
    waitpid(children[rank], nullptr, 0);
  }
  close(to_children[0]);
  close(to_children[1]);
  return ends;
}

inline Options options_on(Device device, const std::string& transport,
                          std::chrono::milliseconds timeout) {
  Options options = options_of({transport, ""}, timeout);
  options.device = device;
  return options;
}

inline Device device_of_rank(int rank, int devices) { return {DeviceType::kCuda, rank % devices}; }

// The same of ranks that all join, on so many devices.
inline std::vector<int> run_processes(int n, int devices, const std::string& transport,
                                      std::chrono::milliseconds timeout,
                                      const std::function<void(Communicator&)>& fn) {
  return run_joining(n, [&](int rank, const Connect& connect) {
    const auto comm = connect(options_on(device_of_rank(rank, devices), transport, timeout));
    fn(*comm);
  });
}

}  // namespace lockstep::comm
